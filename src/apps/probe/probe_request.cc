// SPDX-License-Identifier: Apache-2.0
#include "apps/probe/probe_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"

namespace strata::apps {
namespace {
namespace json = boost::json;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where, what));
}

std::string show(const json::value& value) {
  std::string text = json::serialize(value);
  return text.size() > 80 ? text.substr(0, 80) + "..." : text;
}

// One JSON object whose keys must all be asked for: finish() refuses the rest.
class Fields {
 public:
  Fields(const json::value& value, std::string where) : where_(std::move(where)) {
    if (!value.is_object()) fail(where_, "got " + show(value) + ", want an object");
    object_ = &value.get_object();
  }
  const json::value* find(std::string_view key) {
    asked_.push_back(key);
    return object_->if_contains(json::string_view(key.data(), key.size()));
  }
  const json::value& need(std::string_view key) {
    const json::value* value = find(key);
    if (value == nullptr) fail(at(key), "is missing");
    return *value;
  }
  [[nodiscard]] std::string at(std::string_view key) const {
    return fmt::format("{}.{}", where_, key);
  }
  void finish() const {
    for (const auto& item : *object_) {
      bool known = false;
      for (const std::string_view key : asked_) {
        known = known || key == std::string_view(item.key().data(), item.key().size());
      }
      if (!known)
        fail(where_, fmt::format("unknown key '{}'",
                                 std::string_view(item.key().data(), item.key().size())));
    }
  }

 private:
  std::string where_;
  const json::object* object_ = nullptr;
  std::vector<std::string_view> asked_;
};

double to_number(const json::value& value, const std::string& where) {
  if (!value.is_number()) fail(where, "got " + show(value) + ", want a number");
  return value.to_number<double>();
}

int64_t to_integer(const json::value& value, const std::string& where) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double() && std::floor(value.get_double()) == value.get_double() &&
      std::fabs(value.get_double()) <= 9007199254740992.0) {
    return static_cast<int64_t>(value.get_double());
  }
  fail(where, "got " + show(value) + ", want an integer");
}

bool to_bool(const json::value& value, const std::string& where) {
  if (!value.is_bool()) fail(where, "got " + show(value) + ", want true or false");
  return value.get_bool();
}

std::string to_text(const json::value& value, const std::string& where) {
  if (!value.is_string()) fail(where, "got " + show(value) + ", want a string");
  return {value.get_string().data(), value.get_string().size()};
}

const json::array& to_array(const json::value& value, const std::string& where) {
  if (!value.is_array()) fail(where, "got " + show(value) + ", want a list");
  return value.get_array();
}

// Ids beyond 32 bits are refused here; the engine checks the vocabulary.
std::vector<int32_t> to_ids(const json::value& value, const std::string& where) {
  std::vector<int32_t> ids;
  for (const json::value& item : to_array(value, where)) {
    const int64_t id = to_integer(item, fmt::format("{}[{}]", where, ids.size()));
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      fail(fmt::format("{}[{}]", where, ids.size()), fmt::format("id {} is out of range", id));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::vector<float> to_floats(const json::value& value, const std::string& where) {
  std::vector<float> values;
  for (const json::value& item : to_array(value, where)) {
    values.push_back(
        static_cast<float>(to_number(item, fmt::format("{}[{}]", where, values.size()))));
  }
  return values;
}

api::AdapterSlot to_slot(const json::value& value, const std::string& where, int64_t num_adapters) {
  const int64_t slot = to_integer(value, where);
  if (slot < 0 || slot > num_adapters) {
    fail(where, fmt::format("got {}, want 0 (the base) to {} (the number of --adapter options)",
                            slot, num_adapters));
  }
  return api::AdapterSlot{static_cast<int32_t>(slot)};
}

// Its thresholds are those of ppo here, unlike the protocol's.
std::span<const api::LossOptionRow> options_of(const api::LossRow& row) {
  return api::row_of(row.id == api::LossName::kCispo ? api::LossName::kPpo : row.id).options;
}

const api::LossRow& to_loss_row(const json::value& value, const std::string& where) {
  const std::string name = to_text(value, where);
  if (const api::LossRow* row = api::find_loss(name)) return *row;
  std::vector<std::string_view> known;
  for (const api::LossRow& row : api::kLosses) known.push_back(row.name);
  fail(where, fmt::format("got '{}', want one of {}", name, fmt::join(known, ", ")));
}

api::Loss to_loss(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  const api::LossRow& row = to_loss_row(fields.need("name"), fields.at("name"));
  api::Loss loss = {.name = row.id};
  const json::value none = json::object();
  const json::value* config = fields.find("config");
  Fields keys(config == nullptr ? none : *config, fields.at("config"));
  const std::span<const api::LossOptionRow> options = options_of(row);
  for (size_t i = 0; i < options.size(); ++i) {
    const api::LossOptionRow& option = options[i];
    const json::value* given =
        option.is_required ? &keys.need(option.name) : keys.find(option.name);
    loss.options[i] = static_cast<float>(
        given == nullptr ? option.otherwise : to_number(*given, keys.at(option.name)));
  }
  keys.finish();
  fields.finish();
  return loss;
}

api::Datum to_datum(Fields& fields) {
  api::Datum datum;
  datum.tokens = to_ids(fields.need("tokens"), fields.at("tokens"));
  if (const auto* v = fields.find("targets")) datum.targets = to_ids(*v, fields.at("targets"));
  for (const api::LossInputRow& input : api::kLossInputs) {
    if (const auto* v = fields.find(input.name))
      datum.inputs[input.id] = to_floats(*v, fields.at(input.name));
  }
  return datum;
}

void check_lengths(const Fields& fields, const api::Datum& datum) {
  const auto check = [&](size_t got, std::string_view key) {
    if (got != 0 && got != datum.tokens.size()) {
      fail(fields.at(key),
           fmt::format("got {} values, want {}, one for each token", got, datum.tokens.size()));
    }
  };
  if (datum.tokens.empty()) fail(fields.at("tokens"), "got none, want at least one");
  check(datum.targets.size(), "targets");
  for (const api::LossInputRow& input : api::kLossInputs)
    check(datum.inputs[input.id].size(), input.name);
}

void add_sequence(const json::value& value, const std::string& where, const api::Loss& loss,
                  int64_t num_adapters, ProbeRequest& request) {
  Fields fields(value, where);
  api::Sequence sequence;
  if (const auto* v = fields.find("adapter"))
    sequence.slot = to_slot(*v, fields.at("adapter"), num_adapters);
  api::Datum datum = to_datum(fields);
  const auto* own_loss = fields.find("loss");
  sequence.loss = own_loss == nullptr ? loss : to_loss(*own_loss, fields.at("loss"));
  fields.finish();
  check_lengths(fields, datum);
  request.data.push_back(std::move(datum));
  request.sequences.push_back(sequence);
}

void to_wants(const json::value& value, const std::string& where, ProbeRequest& request) {
  for (const json::value& item : to_array(value, where)) {
    const std::string name = to_text(item, where);
    if (name == "hidden_states")
      request.hidden_states = true;
    else if (name == "logits")
      request.logits = true;
    else if (name == "logprobs")
      request.logprobs = true;
    else if (name == "loss")
      request.loss = true;
    else if (name == "adapter_grads")
      request.adapter_grads = true;
    else if (name == "param_grads")
      request.param_grads = true;
    else
      fail(where,
           fmt::format(
               "got '{}', want hidden_states, logits, logprobs, loss, adapter_grads or param_grads",
               name));
  }
}

ProbeTrain to_train(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  ProbeTrain train;
  const std::string what = to_text(fields.need("what"), fields.at("what"));
  if (what != "adapters" && what != "params")
    fail(fields.at("what"), fmt::format("got '{}', want adapters or params", what));
  train.parameters = what == "params";
  train.steps = to_integer(fields.need("steps"), fields.at("steps"));
  if (train.steps < 1 || train.steps > 1000000) fail(fields.at("steps"), "want 1 to 1000000");
  train.adamw.lr = to_number(fields.need("lr"), fields.at("lr"));
  const auto optional = [&](std::string_view key, double& out) {
    if (const auto* v = fields.find(key)) out = to_number(*v, fields.at(key));
  };
  optional("beta1", train.adamw.beta1);
  optional("beta2", train.adamw.beta2);
  optional("eps", train.adamw.eps);
  optional("weight_decay", train.adamw.weight_decay);
  optional("grad_clip_norm", train.adamw.grad_clip_norm);
  const auto& a = train.adamw;
  if (!(a.lr >= 0)) fail(fields.at("lr"), "want 0 or more");
  if (!(a.beta1 >= 0 && a.beta1 < 1)) fail(fields.at("beta1"), "want 0 or more, below 1");
  if (!(a.beta2 >= 0 && a.beta2 < 1)) fail(fields.at("beta2"), "want 0 or more, below 1");
  if (!(a.eps > 0)) fail(fields.at("eps"), "want more than 0");
  if (!(a.weight_decay >= 0)) fail(fields.at("weight_decay"), "want 0 or more");
  if (!(a.grad_clip_norm >= 0)) fail(fields.at("grad_clip_norm"), "want 0 (off) or more");
  fields.finish();
  return train;
}

uint64_t to_seed(const json::value& value, const std::string& where) {
  if (value.is_uint64()) return value.get_uint64();
  const int64_t seed = to_integer(value, where);
  if (seed < 0) fail(where, "want an unsigned 64-bit integer");
  return static_cast<uint64_t>(seed);
}

api::SampleRequest to_sample(const json::value& value, const std::string& where,
                             int64_t num_adapters) {
  Fields fields(value, where);
  api::SampleRequest sample;
  sample.prompt = to_ids(fields.need("tokens"), fields.at("tokens"));
  sample.max_tokens = to_integer(fields.need("max_tokens"), fields.at("max_tokens"));
  if (const auto* v = fields.find("adapter"))
    sample.slot = to_slot(*v, fields.at("adapter"), num_adapters);
  if (const auto* v = fields.find("temperature")) {
    sample.temperature = static_cast<float>(to_number(*v, fields.at("temperature")));
  }
  if (const auto* v = fields.find("top_k")) sample.top_k = to_integer(*v, fields.at("top_k"));
  if (const auto* v = fields.find("top_p"))
    sample.top_p = static_cast<float>(to_number(*v, fields.at("top_p")));
  if (const auto* v = fields.find("seed")) sample.seed = to_seed(*v, fields.at("seed"));
  if (const auto* v = fields.find("stop")) sample.stop = to_ids(*v, fields.at("stop"));
  if (const auto* v = fields.find("prompt_logprobs")) {
    sample.prompt_logprobs = to_bool(*v, fields.at("prompt_logprobs"));
  }
  if (const auto* v = fields.find("topk_prompt_logprobs")) {
    sample.topk_prompt_logprobs = to_integer(*v, fields.at("topk_prompt_logprobs"));
  }
  fields.finish();
  return sample;
}

// What the losses and wants read must be there.
void check_inputs(const ProbeRequest& request, const std::string& where) {
  if (!request.needs_targets()) return;
  for (size_t s = 0; s < request.sequences.size(); ++s) {
    const api::Datum& datum = request.data[s];
    const std::string at = fmt::format("{}: sequences[{}]", where, s);
    if (datum.targets.empty()) fail(at + ".targets", "is missing; what is wanted needs it");
    for (const api::LossInput input : api::row_of(request.sequences[s].loss.name).inputs) {
      if (input == api::LossInput::kWeights || !datum.inputs[input].empty()) continue;
      fail(fmt::format("{}.{}", at, api::row_of(input).name), "is missing; the loss needs it");
    }
  }
}

}  // namespace

ProbeRequest parse_probe_request(std::string_view text, const std::string& where,
                                 int64_t num_adapters) {
  json::error_code error;
  const json::value root = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) fail(where, "not valid JSON: " + error.message());
  Fields fields(root, where);
  ProbeRequest request;
  api::Loss loss;
  if (const auto* v = fields.find("loss")) loss = to_loss(*v, where + ": loss");
  const json::array& sequences = to_array(fields.need("sequences"), where + ": sequences");
  if (sequences.empty()) fail(where + ": sequences", "got none, want at least one");
  for (size_t s = 0; s < sequences.size(); ++s) {
    add_sequence(sequences[s], fmt::format("{}: sequences[{}]", where, s), loss, num_adapters,
                 request);
  }
  for (size_t s = 0; s < request.data.size(); ++s) request.sequences[s].datum = &request.data[s];
  to_wants(fields.need("want"), where + ": want", request);
  if (const auto* v = fields.find("mtp")) {
    request.mtp_weight = static_cast<float>(to_number(*v, where + ": mtp"));
    if (!(request.mtp_weight >= 0.0f) || std::isinf(request.mtp_weight))
      fail(where + ": mtp", "got " + show(*v) + ", want 0 or more");
  }
  if (const auto* v = fields.find("indexer_loss")) {
    request.indexer_weight = static_cast<float>(to_number(*v, where + ": indexer_loss"));
    if (!(request.indexer_weight >= 0.0f) || std::isinf(request.indexer_weight))
      fail(where + ": indexer_loss", "got " + show(*v) + ", want 0 or more");
  }
  if (const auto* v = fields.find("train")) request.train = to_train(*v, where + ": train");
  if (const auto* v = fields.find("sample")) {
    const json::array& samples = to_array(*v, where + ": sample");
    for (size_t s = 0; s < samples.size(); ++s) {
      request.samples.push_back(
          to_sample(samples[s], fmt::format("{}: sample[{}]", where, s), num_adapters));
    }
  }
  fields.finish();
  check_inputs(request, where);
  return request;
}

}  // namespace strata::apps
