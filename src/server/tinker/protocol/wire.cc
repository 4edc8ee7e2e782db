// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/wire.h"

#include <climits>
#include <cstring>

namespace strata::server {
namespace {

constexpr uint32_t kGroup = 3, kGroupEnd = 4;  // types that no message here has
constexpr int kMaxDepth = 100;                 // of groups in groups
constexpr size_t kMaxVarint = 10;              // bytes
constexpr size_t kMaxShortVarint = 5;          // of a tag and of a length

}  // namespace

bool Wire::next(WireField& out) {
  if (rest_.empty() || has_fault_) return false;
  uint32_t tag_of = 0;
  do {  // until it is no group
    out = WireField();
    if (rest_.empty()) return false;
    has_fault_ = !read_tag(tag_of);
    out.number = tag_of >> 3;
    has_fault_ = has_fault_ || !read_payload(tag_of & 7, out, 0);
  } while (!has_fault_ && (tag_of & 7) == kGroup);
  return !has_fault_;
}

bool Wire::next(uint64_t& out) {
  if (rest_.empty() || has_fault_) return false;
  has_fault_ = !read_varint(out);
  return !has_fault_;
}

bool Wire::read_payload(uint32_t type, WireField& out, int depth) {
  out.type = static_cast<WireType>(type);
  switch (type) {
    case static_cast<uint32_t>(WireType::kVarint):
      return read_varint(out.value);
    case static_cast<uint32_t>(WireType::kFixed64):
      if (rest_.size() < sizeof out.value) return false;
      std::memcpy(&out.value, rest_.data(), sizeof out.value);
      return skip(sizeof out.value);
    case static_cast<uint32_t>(WireType::kBytes): {
      size_t size = 0;
      if (!read_length(size) || size > rest_.size()) return false;
      out.bytes = rest_.substr(0, size);
      return skip(size);
    }
    case kGroup:
      return skip_group(out.number, depth + 1);
    case static_cast<uint32_t>(WireType::kFixed32):
      return skip(sizeof(uint32_t));
    default:
      return false;
  }
}

bool Wire::skip_group(uint32_t number, int depth) {
  if (depth > kMaxDepth) return false;
  WireField inside;
  for (uint32_t tag_of = 0; read_tag(tag_of);) {
    if ((tag_of & 7) == kGroupEnd) return tag_of >> 3 == number;
    inside.number = tag_of >> 3;
    if (!read_payload(tag_of & 7, inside, depth)) return false;
  }
  return false;
}

bool Wire::read_tag(uint32_t& out) {
  uint64_t value = 0;
  const size_t before = rest_.size();
  if (!read_varint(value) || before - rest_.size() > kMaxShortVarint) return false;
  out = static_cast<uint32_t>(value);
  return out >> 3 != 0;
}

bool Wire::read_length(size_t& out) {
  uint64_t value = 0;
  const size_t before = rest_.size();
  if (!read_varint(value) || before - rest_.size() > kMaxShortVarint || value > INT_MAX)
    return false;
  out = static_cast<size_t>(value);
  return true;
}

bool Wire::read_varint(uint64_t& out) {
  out = 0;
  for (size_t i = 0; i < rest_.size() && i < kMaxVarint; ++i) {
    const auto byte = static_cast<unsigned char>(rest_[i]);
    out |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
    if (byte < 0x80) return skip(i + 1);
  }
  return false;
}

bool Wire::skip(size_t count) {
  if (count > rest_.size()) return false;
  rest_.remove_prefix(count);
  return true;
}

}  // namespace strata::server
