// SPDX-License-Identifier: Apache-2.0
// Wire: the fields of a protobuf message where its bytes lie, one after the other, as views of
// them: nothing is copied and nothing allocated. A field of a number that the reader does not know,
// or of another type than it wants, is skipped by not being looked at, as every parser does.
// https://protobuf.dev/programming-guides/encoding
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace strata::server {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;      // of a varint and of kFixed64
  std::string_view bytes;  // of kBytes

  [[nodiscard]] bool is(uint32_t wanted, WireType of_type) const {
    return number == wanted && type == of_type;
  }
  [[nodiscard]] bool is_bytes(uint32_t wanted) const { return is(wanted, WireType::kBytes); }
  [[nodiscard]] bool is_varint(uint32_t wanted) const { return is(wanted, WireType::kVarint); }
};

class Wire {
 public:
  explicit Wire(std::string_view bytes) : rest_(bytes) {}

  // The next field; false at the end of the message, or where it has a fault.
  bool next(WireField& out);
  // The next varint of a packed array; false likewise.
  bool next(uint64_t& out);
  // What was read so far is whole, and nothing is left: no fault ended it.
  [[nodiscard]] bool ended_well() const { return rest_.empty() && !has_fault_; }

 private:
  bool read_tag(uint32_t& out);
  bool read_length(size_t& out);
  bool read_varint(uint64_t& out);
  bool skip(size_t count);
  bool skip_group(uint32_t number, int depth);
  bool read_payload(uint32_t type, WireField& out, int depth);

  std::string_view rest_;
  bool has_fault_ = false;
};

}  // namespace strata::server
