// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/check.h"
#include "base/crypto.h"
#include "base/error.h"
#include "checkpoint/read_pieces.h"

namespace strata {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kNameBytes = 100;
constexpr size_t kPrefixBytes = 155;

// Where the fields of a header begin.
constexpr size_t kMode = 100, kUser = 108, kGroup = 116, kSize = 124, kTime = 136, kSum = 148,
                 kType = 156, kMagic = 257, kPrefix = 345;
constexpr std::string_view kUstar(
    "ustar\0"
    "00",
    8);

void write_octal(std::span<char> field, int64_t value) {
  // The last byte stays NUL.
  for (size_t i = field.size() - 1; i-- > 0; value >>= 3) {
    field[i] = static_cast<char>('0' + (value & 7));
  }
}

// The sum of a header counts its own field as spaces.
int64_t header_checksum(std::string_view block) {
  int64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    sum += i >= kSum && i < kSum + 8 ? ' ' : static_cast<unsigned char>(block[i]);
  }
  return sum;
}

// What is before it is the prefix.
size_t begin_of_name_field(const std::string& name) {
  return name.size() <= kNameBytes ? 0 : name.find('/', name.size() - kNameBytes - 1) + 1;
}

void write_name_and_prefix(std::string& block, const std::string& name) {
  const size_t split = begin_of_name_field(name);
  CHECK(!name.empty() && name.size() - split <= kNameBytes && split <= kPrefixBytes + 1, name);
  std::copy(name.begin() + static_cast<int64_t>(split), name.end(), block.begin());
  if (split > 0) std::copy_n(name.begin(), split - 1, block.begin() + kPrefix);
}

std::string tar_header(const std::string& name, int64_t size, int64_t time) {
  if (size >= kTarFileLimit)
    throw Error(ErrorCode::kUnsupported, name + ": 8 GiB or more: too large for a file of a tar");
  std::string block(kBlock, '\0');
  write_name_and_prefix(block, name);
  const std::span<char> bytes(block);
  write_octal(bytes.subspan(kMode, 8), 0644);
  write_octal(bytes.subspan(kUser, 8), 0);
  write_octal(bytes.subspan(kGroup, 8), 0);
  write_octal(bytes.subspan(kSize, 12), size);
  write_octal(bytes.subspan(kTime, 12), time);
  block[kType] = '0';
  block.replace(kMagic, kUstar.size(), kUstar);
  write_octal(bytes.subspan(kSum, 7), header_checksum(block));
  block[kSum + 7] = ' ';
  return block;
}

std::string padding(int64_t size) { return std::string((kBlock - size % kBlock) % kBlock, '\0'); }

int64_t round_up_to_blocks(int64_t size) {
  const auto block_bytes = static_cast<int64_t>(kBlock);
  return (size + block_bytes - 1) / block_bytes * block_bytes;
}

// Digits up to a NUL or a space; -1 for anything else.
int64_t parse_octal(std::string_view field) {
  int64_t value = 0;
  size_t i = 0;
  for (; i < field.size() && field[i] >= '0' && field[i] <= '7'; ++i) {
    value = value * 8 + (field[i] - '0');
  }
  const bool ends = i == field.size() || field[i] == '\0' || field[i] == ' ';
  return i == 0 || !ends ? -1 : value;
}

std::string text_field(std::string_view block, size_t at, size_t size) {
  const std::string_view field = block.substr(at, size);
  return std::string(field.substr(0, field.find('\0')));
}

std::string full_name(std::string_view block) {
  const std::string name = text_field(block, 0, kNameBytes);
  const std::string prefix = text_field(block, kPrefix, kPrefixBytes);
  return prefix.empty() ? name : prefix + "/" + name;
}

std::string read_block(const ReadOnlyFile& file, int64_t at) {
  std::string block(kBlock, '\0');
  file.read_at(at, std::as_writable_bytes(std::span(block)));
  return block;
}

// Whether its sum and its format are those of a header.
bool is_ustar_header(std::string_view block) {
  return parse_octal(block.substr(kSum, 8)) == header_checksum(block) &&
         block.substr(kMagic, kUstar.size()) == kUstar;
}

}  // namespace

std::string TarWriter::add(const std::string& name, const ReadOnlyFile& file, int64_t time) {
  out_.append(tar_header(name, file.size(), time));
  Sha256 hash;
  read_pieces(file, 0, file.size(), [&](std::string_view piece) {
    if (before_piece_ != nullptr) before_piece_();
    out_.append(piece);
    hash.add(piece);
  });
  out_.append(padding(file.size()));
  return hash.finish();
}

std::string TarWriter::add(const std::string& name, std::string_view content, int64_t time) {
  const auto size = static_cast<int64_t>(content.size());
  out_.append(tar_header(name, size, time));
  out_.append(content);
  out_.append(padding(size));
  return sha256(content);
}

void TarWriter::commit() {
  out_.append(std::string(2 * kBlock, '\0'));
  out_.commit();
}

void TarReader::fail(const std::string& what) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: byte {}: {}", file_.path(), at_, what));
}

std::optional<TarEntry> TarReader::next() {
  const auto block_bytes = static_cast<int64_t>(kBlock);
  if (file_.size() - at_ < block_bytes) fail("the archive ends early; was it cut?");
  const std::string block = read_block(file_, at_);
  if (block.find_first_not_of('\0') == std::string::npos) return std::nullopt;
  if (!is_ustar_header(block)) fail("no header of a tar file; is it damaged?");
  if (block[kType] != '0') fail("not a regular file");
  TarEntry entry;
  entry.name = full_name(block);
  entry.size = parse_octal(std::string_view(block).substr(kSize, 12));
  entry.offset = at_ + block_bytes;
  if (entry.size < 0 || entry.size > file_.size() - entry.offset)
    fail(fmt::format("'{}' goes beyond the archive's end; was it cut?", entry.name));
  at_ = entry.offset + round_up_to_blocks(entry.size);
  return entry;
}

void TarReader::read(const TarEntry& entry,
                     const std::function<void(std::string_view)>& take) const {
  read_pieces(file_, entry.offset, entry.size, take);
}

bool is_tar_file(const std::string& path) {
  constexpr std::string_view kName = kUstar.substr(0, 5);  // a version of any kind
  std::error_code fault;
  if (!std::filesystem::is_regular_file(path, fault)) return false;
  const ReadOnlyFile file(path);
  std::array<char, kName.size()> magic = {};
  const auto at = static_cast<int64_t>(kMagic);
  if (file.size() < at + std::ssize(magic)) return false;
  file.read_at(at, std::as_writable_bytes(std::span(magic)));
  return std::string_view(magic.data(), magic.size()) == kName;
}

}  // namespace strata
