#include "server/protocol/pass_scan.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace strata::server {
namespace {

// One field of a message on the wire.
struct Field {
  uint32_t number = 0;
  std::string_view bytes;  // of a length-delimited field
  bool is_delimited = false;
  uint64_t value = 0;  // of a varint
};

// The fields of a message, until its end or the first that no parser accepts.
class Wire {
 public:
  explicit Wire(std::string_view bytes) : rest_(bytes) {}

  bool next(Field& out) {
    uint64_t tag = 0;
    if (!varint(tag)) return false;
    out = Field();
    out.number = static_cast<uint32_t>(tag >> 3);
    uint64_t size = 0;
    switch (tag & 7) {
      case 0:
        return varint(out.value);
      case 1:
        return skip(8);
      case 2:
        if (!varint(size) || size > rest_.size()) return false;
        out.is_delimited = true;
        out.bytes = rest_.substr(0, size);
        return skip(size);
      case 5:
        return skip(4);
      default:
        return false;
    }
  }

 private:
  bool varint(uint64_t& out) {
    out = 0;
    for (size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<unsigned char>(rest_[i]);
      out |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if (byte < 0x80) return skip(i + 1);
    }
    return false;
  }
  bool skip(size_t count) {
    if (count > rest_.size()) return false;
    rest_.remove_prefix(count);
    return true;
  }

  std::string_view rest_;
};

// Numbers of tinker.proto.
constexpr uint32_t kModelId = 1, kSeqId = 2, kData = 3, kLossInputs = 2, kEntryValue = 2,
                   kShape = 4;

class Parts {
 public:
  void request(std::string_view bytes) {
    Wire wire(bytes);
    for (Field field; wire.next(field);) {
      add(1);
      if (field.number == kModelId) head.model_id = field.bytes;
      if (field.number == kSeqId) head.seq_id = static_cast<int32_t>(field.value);
      if (field.number != kData || !field.is_delimited) continue;
      check_num_data(++num_data_);
      datum(field.bytes);
    }
  }
  PassScan head;

 private:
  void datum(std::string_view bytes) {
    Wire wire(bytes);
    for (Field field; wire.next(field);) {
      add(1);
      if (field.number == kLossInputs) loss_input(field.bytes);
    }
  }
  void loss_input(std::string_view bytes) {
    Wire wire(bytes);
    for (Field field; wire.next(field);) {
      add(1);
      if (field.number == kEntryValue) tensor(field.bytes);
    }
  }
  void tensor(std::string_view bytes) {
    Wire wire(bytes);
    for (Field field; wire.next(field);) {
      // A packed dimension takes one byte or more.
      add(field.number == kShape && field.is_delimited ? static_cast<int64_t>(field.bytes.size())
                                                       : 1);
    }
  }
  void add(int64_t count) {
    head.num_parts += count;
    if (head.num_parts <= kMaxParts) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("forward_backward: the request has more than {} chunks, spans, loss "
                            "inputs, dimensions and options; send the data in several requests",
                            kMaxParts));
  }

  int64_t num_data_ = 0;
};

}  // namespace

void check_num_data(int64_t count) {
  if (count <= kMaxData) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("forward_backward: the request has more than {} data; send them in "
                          "several requests",
                          kMaxData));
}

PassScan scan_pass(std::string_view bytes) {
  Parts parts;
  try {
    parts.request(bytes);
  } catch (const Error& error) {
    parts.head.fault = error.what();
  }
  return std::move(parts.head);
}

}  // namespace strata::server
