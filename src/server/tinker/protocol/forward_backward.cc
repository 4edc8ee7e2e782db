// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/forward_backward.h"

#include <fmt/format.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <set>

#include "api/context.h"
#include "base/error.h"
#include "server/tinker/protocol/json_data.h"
#include "server/tinker/protocol/provenance.h"
#include "server/tinker/protocol/tensor.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxTargets = 1024;  // of a position
constexpr size_t kPartBytes = 128;     // of a message's parts, besides what they borrow, at most

void append_tokens(std::string_view bytes, const std::string& where, std::vector<int32_t>& tokens) {
  if (bytes.size() % sizeof(int32_t) != 0) {
    fail_data(where, fmt::format("{} bytes of tokens are no multiple of 4", bytes.size()));
  }
  const size_t before = tokens.size();
  tokens.resize(before + bytes.size() / sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(tokens.data() + before, bytes.data(), bytes.size());
}

void append_chunk(const ChunkMessage& chunk, const std::string& where,
                  std::vector<int32_t>& tokens) {
  switch (chunk.kind) {
    case ChunkMessage::Kind::kText:
      return append_tokens(chunk.tokens, where, tokens);
    case ChunkMessage::Kind::kImage:
      fail_data(where, "image chunks are not supported: the model reads text only");
    case ChunkMessage::Kind::kDmel:
      fail_data(where, "audio (dmel) chunks are not supported: the model reads text only");
    case ChunkMessage::Kind::kNone:
      fail_data(where, "the chunk has no kind");
  }
}

std::vector<int32_t> read_tokens(const DatumMessage& datum, const std::string& where) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < datum.model_input.size(); ++i)
    append_chunk(datum.model_input[i], fmt::format("{}: model_input chunk {}", where, i), tokens);
  if (tokens.empty()) fail_data(where, "model_input is empty");
  return tokens;
}

bool is_of_clients(api::LossInput input) { return !api::row_of(input).is_recorded; }

void check_loss_inputs(const DatumMessage& datum, const api::LossRow& loss,
                       const std::string& where) {
  std::set<std::string_view> names = {"target_tokens"};
  for (const api::LossInput input : loss.inputs) {
    if (!is_of_clients(input)) continue;
    const std::string_view name = api::row_of(input).name;
    names.insert(name);
    if (!datum.inputs.contains(name)) {
      fail_data(where, fmt::format("loss_fn_inputs lacks '{}', which {} needs", name, loss.name));
    }
  }
  if (!datum.inputs.contains("target_tokens"))
    fail_data(where, "loss_fn_inputs lacks 'target_tokens'");
  for (const auto& [name, tensor] : datum.inputs) {
    if (!names.contains(name)) {
      fail_data(where, fmt::format("loss_fn_inputs has '{}', which {} does not read",
                                   name.substr(0, 100), loss.name));
    }
  }
}

std::string shape_text(int64_t rows, int64_t columns) {
  return columns > 0 ? fmt::format("({}, {})", rows, columns) : fmt::format("({},)", rows);
}

std::vector<float> read_loss_input(const DatumMessage& datum, std::string_view name,
                                   int64_t columns, const TensorLimits& limits,
                                   const std::string& where) {
  const std::string at = fmt::format("{}: {}", where, name);
  const int64_t rows = limits.rows;
  FloatTensor tensor = read_float_tensor(datum.inputs.at(name), at, limits);
  if (tensor.num_rows != rows || tensor.num_columns != columns) {
    fail_data(at, fmt::format("has shape {}, target_tokens has {}",
                              shape_text(tensor.num_rows, tensor.num_columns),
                              shape_text(rows, columns)));
  }
  return std::move(tensor.values);
}

IntTensor read_targets(const DatumMessage& datum, const api::LossRow& loss,
                       const TensorLimits& limits, const std::string& where) {
  IntTensor targets =
      read_int_tensor(datum.inputs.at("target_tokens"), where + ": target_tokens", limits);
  if (targets.num_rows != limits.rows) {
    fail_data(where, fmt::format("target_tokens has {} rows, model_input has {} tokens",
                                 targets.num_rows, limits.rows));
  }
  const bool has_weights = loss.id == api::LossName::kCrossEntropy;
  if (targets.num_columns > 0 && !has_weights)
    fail_data(where, fmt::format("target_tokens has two dimensions, {} takes one", loss.name));
  return targets;
}

// Takes what it builds off limits.elements. `records`: of a loss that reads some, else null.
api::Datum build_datum(const DatumMessage& message, const api::LossRow& loss,
                       const std::string& where, DataLimits& limits, SampleRecords* records) {
  api::Datum datum;
  datum.tokens = read_tokens(message, where);
  const auto rows = static_cast<int64_t>(datum.tokens.size());
  check_loss_inputs(message, loss, where);
  TensorLimits left = {.rows = rows, .columns = kMaxTargets, .elements = limits.elements};
  IntTensor targets = read_targets(message, loss, left, where);
  left.elements -= std::ssize(targets.values);
  datum.targets = std::move(targets.values);
  datum.num_targets = targets.num_columns;
  for (const api::LossInput input : loss.inputs) {
    if (!is_of_clients(input)) continue;
    std::vector<float>& values = datum.inputs[input];
    values = read_loss_input(message, api::row_of(input).name, targets.num_columns, left, where);
    left.elements -= std::ssize(values);
  }
  limits.elements = left.elements;
  if (records != nullptr) fill_inputs_from_records(message, *records, where, datum);
  return datum;
}

using Config = std::map<std::string_view, double>;

Config read_loss_config(const DataMessage& message) {
  if (message.config_v2.empty()) return message.config;
  Config config;
  for (const auto& [name, value] : message.config_v2) {
    if (!value) {
      fail_data("forward_backward",
                fmt::format("loss_fn_config: {} is not a number", name.substr(0, 100)));
    }
    config[name] = *value;
  }
  return config;
}

// A loss as a client names it.
const api::LossRow& require_loss(std::string_view name) {
  const api::LossRow* found = api::find_loss(name);
  if (found != nullptr) return *found;
  if (name == "custom") {
    fail_data("forward_backward",
              "loss_fn 'custom' is not supported: run custom losses in the client");
  }
  std::string known;
  for (const api::LossRow& row : api::kLosses) {
    if (!row.of_pairs) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  fail_data("forward_backward",
            fmt::format("unknown loss_fn '{}'; known: {}", name.substr(0, 100), known));
}

// What is needed is there, and what ascends does.
void check_loss_options(const api::LossRow& row, const Config& config, const api::Loss& loss,
                        const std::string& where) {
  for (size_t i = 0; i < row.options.size(); ++i) {
    const api::LossOptionRow& option = row.options[i];
    if (option.is_required && !config.contains(option.name)) {
      fail_data(where, fmt::format("{} needs '{}' (for example {}); it has no default", row.name,
                                   option.name, option.otherwise));
    }
    if (row.options_ascend && i > 0 && loss.options[i - 1] > loss.options[i]) {
      fail_data(where, fmt::format("{} {} is above {} {}", row.options[i - 1].name,
                                   loss.options[i - 1], option.name, loss.options[i]));
    }
  }
}

// With what its row says where nothing is given; all faults are told as the protocol has them.
api::Loss make_loss(const api::LossRow& row, const Config& config) {
  const std::string where = "forward_backward: loss_fn_config";
  api::Loss loss = api::default_loss(row.id);
  for (const auto& [name, value] : config) {
    const std::optional<size_t> at = api::option_index(row, name);
    if (!at) fail_data(where, fmt::format("{} has no option '{}'", row.name, name.substr(0, 100)));
    const auto rounded = static_cast<float>(value);  // beyond what one holds: not finite either
    if (!std::isfinite(rounded)) fail_data(where, fmt::format("{} is not finite", name));
    loss.options[*at] = rounded;
  }
  check_loss_options(row, config, loss, where);
  return loss;
}

std::string endpoint(DataForm form) {
  return form == DataForm::kJsonForward ? "forward" : "forward_backward";
}

}  // namespace

ForwardBackwardBody::ForwardBackwardBody(std::string_view bytes, DataForm form,
                                         const Charge* request)
    : form_(form) {
  if (request != nullptr && request->held(Use::kBody) > 0)
    parsed_.emplace(*request, endpoint(form));
  form == DataForm::kBinary ? read_binary(bytes) : read_json(bytes, request);
}

void ForwardBackwardBody::read_binary(std::string_view bytes) {
  DataScan scan = scan_data(bytes);
  if (scan.fault) {
    message_.model_id = scan.model_id;
    message_.seq_id = scan.seq_id;
    fault_ = std::move(scan.fault);
    return;
  }
  // With what build() makes of the arrays.
  if (parsed_)
    parsed_->resize_hold(bytes.size() + static_cast<size_t>(scan.num_parts) * kPartBytes);
  if (bytes.empty() || bytes.size() > INT_MAX || !read_data_message(bytes, message_)) {
    throw Error(ErrorCode::kInvalidArgument,
                "forward_backward: the body is not a ForwardBackwardRequest message");
  }
}

void ForwardBackwardBody::read_json(std::string_view text, const Charge* request) {
  json_ = std::make_unique<text::JsonBody>(text, endpoint(form_), request);
  if (parsed_) parsed_->resize_hold(text.size());  // what build() makes of it
  const text::Fields body = json_->root();
  message_.model_id = message_.keep(body.string("model_id"));
  message_.forward_only = form_ == DataForm::kJsonForward;
  message_.seq_id = body.integer("seq_id", INT64_MIN, INT64_MAX / 2);
}

api::ForwardBackward ForwardBackwardBody::build(const DataLimits& limits,
                                                const FindRecord& find_record) {
  if (fault_) throw Error(ErrorCode::kInvalidArgument, *fault_);
  if (json_) {
    read_json_data(json_->root(), endpoint(form_) + "_input", message_);
    json_.reset();  // several times the size of what it held
  }
  const api::LossRow& loss = require_loss(message_.loss_fn);
  api::ForwardBackward command;
  command.loss = make_loss(loss, read_loss_config(message_));
  command.forward_only = message_.forward_only;
  if (message_.data.empty()) fail_data("forward_backward", "the list of data is empty");
  command.data.reserve(message_.data.size());
  DataLimits left = limits;
  std::optional<SampleRecords> records;
  if (loss.reads_records()) records.emplace(find_record, limits.record_bytes);
  for (size_t i = 0; i < message_.data.size(); ++i) {
    command.data.push_back(build_datum(message_.data[i], loss, fmt::format("datum {}", i), left,
                                       records ? &*records : nullptr));
  }
  return command;
}

std::optional<std::string> find_length_fault(const api::ForwardBackward& command,
                                             const api::BaseInfo& base) {
  for (size_t i = 0; i < command.data.size(); ++i) {
    const int64_t tokens = std::ssize(command.data[i].tokens);
    if (const auto fault = api::find_context_fault(tokens, base.max_context))
      return fmt::format("datum {}: {}{}", i, *fault,
                         api::context_note(base.max_context, base.model_context));
    if (command.forward_only) continue;
    if (const auto fault = api::find_datum_memory_fault(tokens, base.longest_datum))
      return fmt::format("datum {}: {}", i, *fault);
  }
  return std::nullopt;
}

uint64_t fingerprint_of(const api::ForwardBackward& command) {
  Hash hash;
  hash.mix(static_cast<uint64_t>(command.loss.name));
  for (const float option : command.loss.options) hash.mix_bytes(&option, sizeof option);
  hash.mix(command.forward_only ? 1 : 0);
  for (const api::Datum& datum : command.data) {
    hash.mix_values(datum.tokens);
    hash.mix_values(datum.targets);
    for (const std::vector<float>& column : datum.inputs.values) hash.mix_values(column);
    hash.mix(static_cast<uint64_t>(datum.num_targets));
  }
  return hash.value();
}

}  // namespace strata::server
