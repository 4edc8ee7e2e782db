// SPDX-License-Identifier: Apache-2.0
#include "server/protocol/pass_scan.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "server/protocol/wire.h"

namespace strata::server {
namespace {

// Numbers of tinker.proto.
constexpr uint32_t kModelId = 1, kSeqId = 2, kData = 3, kLossInputs = 2, kEntryValue = 2,
                   kShape = 4;

class Parts {
 public:
  void request(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      add(1);
      if (field.is_bytes(kModelId)) head.model_id = field.bytes;
      if (field.is_varint(kSeqId)) head.seq_id = static_cast<int32_t>(field.value);
      if (!field.is_bytes(kData)) continue;
      check_num_data(++num_data_);
      datum(field.bytes);
    }
  }
  PassScan head;

 private:
  void datum(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      add(1);
      if (field.is_bytes(kLossInputs)) loss_input(field.bytes);
    }
  }
  void loss_input(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      add(1);
      if (field.is_bytes(kEntryValue)) tensor(field.bytes);
    }
  }
  void tensor(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      // A packed dimension takes one byte or more.
      add(field.is_bytes(kShape) ? static_cast<int64_t>(field.bytes.size()) : 1);
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
