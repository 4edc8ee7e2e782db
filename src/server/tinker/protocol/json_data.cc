// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/json_data.h"

#include <fmt/format.h>
#include <server/tinker/protocol/tinker.pb.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/tinker/protocol/tensor.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

// The values' bytes; the type goes into `out`.
std::string read_dtype_and_values(const text::Fields& tensor, TensorMessage& out) {
  const std::string dtype = tensor.string("dtype");
  if (dtype == "int64") {
    out.dtype = tinker_public::DTYPE_INT64;
    return packed(tensor.integers("data"));
  }
  if (dtype == "float32") {
    out.dtype = tinker_public::DTYPE_FLOAT32;
    return packed(tensor.floats("data"));
  }
  tensor.fail("dtype", fmt::format("got '{}', wanted 'int64' or 'float32'", dtype.substr(0, 100)));
}

void read_tensor(const text::Fields& tensor, DataMessage& message, TensorMessage& out) {
  out.values = message.keep(read_dtype_and_values(tensor, out));
  if (tensor.has("shape")) out.shape = tensor.integers("shape");
  if (!tensor.has("sparse_crow_indices") && !tensor.has("sparse_col_indices")) {
    out.form = TensorMessage::Form::kDense;
    return;
  }
  out.form = TensorMessage::Form::kSparse;
  out.crow = message.keep(packed(tensor.integers("sparse_crow_indices")));
  out.col = message.keep(packed(tensor.integers("sparse_col_indices")));
}

void read_datum(const text::Fields& datum, DataMessage& message, DatumMessage& out) {
  for (const char* name : {"model_input_spans", "loss_fn_input_spans"}) {
    if (datum.has(name)) datum.fail(name, "is read from application/x-protobuf bodies only");
  }
  const std::vector<int32_t> tokens =
      read_model_input(datum.object("model_input"), INT32_MIN, INT32_MAX);
  out.model_input.push_back(
      {.kind = ChunkMessage::Kind::kText, .tokens = message.keep(packed(tokens))});
  const text::Fields inputs = datum.object("loss_fn_inputs");
  inputs.each_name([&](const std::string& name) {
    read_tensor(inputs.object(name), message, out.inputs[message.keep(name)]);
  });
}

void read_loss_options(const text::Fields& config, DataMessage& message) {
  config.each_name([&](const std::string& name) {
    std::optional<double>& value = message.config_v2[message.keep(name)];
    if (!config.is_string(name)) value = config.number(name);
  });
}

}  // namespace

void read_json_data(const text::Fields& body, std::string_view input, DataMessage& message) {
  if (body.boolean_or("forward_only", false) && !message.forward_only) {
    body.fail("forward_only", "JSON bodies ask for it by POST forward");
  }
  const text::Fields fields = body.object(input);
  message.loss_fn = message.keep(fields.string("loss_fn"));
  if (fields.has("loss_fn_config")) read_loss_options(fields.object("loss_fn_config"), message);
  fields.each_object("data", [&](const text::Fields& datum) {
    check_num_data(std::ssize(message.data) + 1);
    read_datum(datum, message, message.data.emplace_back());
  });
}

namespace {

void append_chunk_tokens(const text::Fields& chunk, int32_t min, int32_t max,
                         std::vector<int32_t>& tokens) {
  const std::string type = chunk.string_or("type", "encoded_text");
  if (type != "encoded_text") {
    chunk.fail("type", fmt::format("'{}' chunks are not supported: the model reads text only",
                                   type.substr(0, 100)));
  }
  for (const int64_t id : chunk.integers("tokens")) {
    if (id < min || id > max) {
      chunk.fail("tokens", fmt::format("token {} is outside {} to {}", id, min, max));
    }
    tokens.push_back(static_cast<int32_t>(id));
  }
}

}  // namespace

std::vector<int32_t> read_model_input(const text::Fields& input, int32_t min, int32_t max) {
  std::vector<int32_t> tokens;
  input.each_object(
      "chunks", [&](const text::Fields& chunk) { append_chunk_tokens(chunk, min, max, tokens); });
  return tokens;
}

}  // namespace strata::server
