// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/data_message.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "base/error.h"
#include "server/tinker/protocol/wire.h"
#include "text/unicode/unicode.h"

namespace strata::server {
namespace {

// One after the other, until one cannot be read: false, as for bytes that are no message.
// Numbers of tinker.proto stand where they are read. Of a field that comes twice the last counts;
// a message that comes twice is read into the same place, but not where it is another of a oneof.
template <typename Read>
bool read_fields(std::string_view bytes, const Read& read) {
  Wire wire(bytes);
  for (WireField field; wire.next(field);) {
    if (!read(field)) return false;
  }
  return wire.ended_well();
}

bool read_string(const WireField& field, std::string_view& out) {
  out = field.bytes;
  return text::is_valid_utf8(out);
}

bool read_chunk(std::string_view bytes, ChunkMessage& out) {
  using Kind = ChunkMessage::Kind;
  const auto is_whole = [](const WireField&) { return true; };
  return read_fields(bytes, [&](const WireField& field) {
    if (!field.is_bytes(1) && !field.is_bytes(2) && !field.is_bytes(3)) return true;
    const auto kind = static_cast<Kind>(field.number);
    if (out.kind != kind) out = {.kind = kind};
    return read_fields(field.bytes, [&](const WireField& part) {
      if (kind == Kind::kText && part.is_bytes(1)) out.tokens = part.bytes;
      if (kind != Kind::kImage) return true;
      if (part.is_bytes(2)) return text::is_valid_utf8(part.bytes);   // its format
      return !part.is_bytes(4) || read_fields(part.bytes, is_whole);  // its dimensions
    });
  });
}

bool read_sparse(std::string_view bytes, TensorMessage& out) {
  return read_fields(bytes, [&](const WireField& field) {
    if (field.is_bytes(1)) out.values = field.bytes;
    if (field.is_bytes(2)) out.crow = field.bytes;
    if (field.is_bytes(3)) out.col = field.bytes;
    return true;
  });
}

bool read_dims(std::string_view bytes, std::vector<int64_t>& out) {
  Wire wire(bytes);
  for (uint64_t dim = 0; wire.next(dim);) out.push_back(static_cast<int64_t>(dim));
  return wire.ended_well();
}

bool read_tensor(std::string_view bytes, TensorMessage& out) {
  using Form = TensorMessage::Form;
  return read_fields(bytes, [&](const WireField& field) {
    if (field.is_bytes(1)) {
      out.form = Form::kDense;
      out.values = field.bytes;
    } else if (field.is_bytes(2)) {
      if (out.form != Form::kSparse) out.values = out.crow = out.col = {};
      out.form = Form::kSparse;
      return read_sparse(field.bytes, out);
    } else if (field.is_varint(3)) {
      out.dtype = static_cast<int32_t>(field.value);
    } else if (field.is_varint(4)) {
      out.shape.push_back(static_cast<int64_t>(field.value));
    } else if (field.is_bytes(4)) {
      return read_dims(field.bytes, out.shape);
    }
    return true;
  });
}

bool read_span(std::string_view bytes, SpanMessage& out) {
  using Kind = SpanMessage::Kind;
  return read_fields(bytes, [&](const WireField& field) {
    if (!field.is_bytes(1) && !field.is_bytes(2)) return true;
    const Kind kind = field.number == 1 ? Kind::kPrompt : Kind::kSampled;
    if (out.kind != kind) out = {.kind = kind};
    return read_fields(field.bytes, [&](const WireField& part) {
      if (part.is_bytes(1)) return read_string(part, out.sequence_id);
      if (part.is_varint(2)) out.offset = static_cast<int64_t>(part.value);
      if (part.is_varint(3)) out.length = static_cast<int64_t>(part.value);
      return true;
    });
  });
}

// One entry of a map: its name, field 1, and read_value(field 2's field, value).
template <typename Value, typename ReadValue>
bool read_map_entry(std::string_view bytes, std::map<std::string_view, Value>& out,
                    const ReadValue& read_value) {
  std::string_view name;
  Value value = {};
  const bool is_whole = read_fields(bytes, [&](const WireField& field) {
    if (field.is_bytes(1)) return read_string(field, name);
    return field.number != 2 || read_value(field, value);
  });
  if (is_whole) out[name] = std::move(value);
  return is_whole;
}

bool read_input(const WireField& field, TensorMessage& out) {
  return field.type != WireType::kBytes || read_tensor(field.bytes, out);
}

bool read_double(const WireField& field, double& out) {
  if (field.type == WireType::kFixed64) out = std::bit_cast<double>(field.value);
  return true;
}

bool read_config_value(const WireField& field, std::optional<double>& out) {
  if (field.type != WireType::kBytes) return true;
  return read_fields(field.bytes, [&](const WireField& value) {
    if (value.is(1, WireType::kFixed64)) out = std::bit_cast<double>(value.value);
    if (!value.is_bytes(2)) return true;
    out.reset();
    std::string_view text;
    return read_string(value, text);
  });
}

bool read_datum(std::string_view bytes, DatumMessage& out) {
  return read_fields(bytes, [&](const WireField& field) {
    if (field.type != WireType::kBytes) return true;
    switch (field.number) {
      case 1:
        return read_chunk(field.bytes, out.model_input.emplace_back());
      case 2:
        return read_map_entry(field.bytes, out.inputs, read_input);
      case 3:
        return read_span(field.bytes, out.model_input_spans.emplace_back());
      case 4:
        return read_span(field.bytes, out.loss_input_spans.emplace_back());
      default:
        return true;
    }
  });
}

// The fields of tinker.proto that a scan looks into.
constexpr uint32_t kModelId = 1, kSeqId = 2, kData = 3, kLossInputs = 2, kEntryValue = 2,
                   kShape = 4;

class PartCounter {
 public:
  void scan_request(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      add_parts_within_limit(1);
      if (field.is_bytes(kModelId)) head.model_id = field.bytes;
      if (field.is_varint(kSeqId)) head.seq_id = static_cast<int32_t>(field.value);
      if (!field.is_bytes(kData)) continue;
      check_num_data(++num_data_);
      count_datum_parts(field.bytes);
    }
  }
  DataScan head;

 private:
  void count_datum_parts(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      add_parts_within_limit(1);
      if (field.is_bytes(kLossInputs)) count_loss_input_parts(field.bytes);
    }
  }
  void count_loss_input_parts(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      add_parts_within_limit(1);
      if (field.is_bytes(kEntryValue)) count_tensor_parts(field.bytes);
    }
  }
  void count_tensor_parts(std::string_view bytes) {
    Wire wire(bytes);
    for (WireField field; wire.next(field);) {
      // A packed dimension takes one byte or more.
      add_parts_within_limit(field.is_bytes(kShape) ? static_cast<int64_t>(field.bytes.size()) : 1);
    }
  }
  void add_parts_within_limit(int64_t count) {
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

DataScan scan_data(std::string_view bytes) {
  PartCounter parts;
  try {
    parts.scan_request(bytes);
  } catch (const Error& error) {
    parts.head.fault = error.what();
  }
  return std::move(parts.head);
}

bool read_data_message(std::string_view bytes, DataMessage& out) {
  return read_fields(bytes, [&](const WireField& field) {
    if (field.is_bytes(1)) return read_string(field, out.model_id);
    if (field.is_varint(2)) out.seq_id = static_cast<int32_t>(field.value);
    if (field.is_bytes(3)) return read_datum(field.bytes, out.data.emplace_back());
    if (field.is_bytes(4)) return read_string(field, out.loss_fn);
    if (field.is_bytes(5)) return read_map_entry(field.bytes, out.config, read_double);
    if (field.is_varint(6)) out.forward_only = field.value != 0;
    if (field.is_bytes(7)) return read_map_entry(field.bytes, out.config_v2, read_config_value);
    return true;
  });
}

}  // namespace strata::server
