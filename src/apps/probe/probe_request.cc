// SPDX-License-Identifier: Apache-2.0
#include "apps/probe/probe_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "text/json_body.h"

namespace strata::apps {
namespace {
using text::Fields;

// Ids beyond 32 bits are refused here; the engine checks the vocabulary.
std::vector<int32_t> parse_ids(const Fields& fields, std::string_view name) {
  std::vector<int32_t> ids;
  for (const int64_t id : fields.integers(name)) {
    if (id < 0 || id > std::numeric_limits<int32_t>::max())
      fields.fail(name, fmt::format("item {}: id {} is out of range", ids.size(), id));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

api::AdapterSlot parse_slot(const Fields& fields, int64_t num_adapters) {
  const int64_t slot = fields.integer_or("adapter", 0, 0, INT32_MAX);
  if (slot > num_adapters) {
    fields.fail("adapter", fmt::format("got {}, wanted 0 (the base) to {} (the number of --adapter "
                                       "options)",
                                       slot, num_adapters));
  }
  return api::AdapterSlot{static_cast<int32_t>(slot)};
}

// Its thresholds are those of ppo here, unlike the protocol's.
std::span<const api::LossOptionRow> options_of(const api::LossRow& row) {
  return api::row_of(row.id == api::LossName::kCispo ? api::LossName::kPpo : row.id).options;
}

const api::LossRow& parse_loss_row(const Fields& fields) {
  const std::string name = fields.string("name");
  if (const api::LossRow* row = api::find_loss(name)) return *row;
  std::vector<std::string_view> known;
  for (const api::LossRow& row : api::kLosses) {
    if (!row.of_pairs) known.push_back(row.name);
  }
  fields.fail("name", fmt::format("got '{}', wanted one of {}", name, fmt::join(known, ", ")));
}

void read_loss_options(const Fields& fields, api::Loss& loss) {
  const std::span<const api::LossOptionRow> options = options_of(api::row_of(loss.name));
  std::vector<std::string_view> names;
  for (size_t i = 0; i < options.size(); ++i) {
    const api::LossOptionRow& option = options[i];
    names.push_back(option.name);
    loss.options[i] =
        static_cast<float>(option.is_required ? fields.number(option.name)
                                              : fields.number_or(option.name, option.otherwise));
  }
  fields.refuse_unknown_fields(names);
}

api::Loss parse_loss(const Fields& fields) {
  fields.refuse_unknown_fields({"name", "config"});
  api::Loss loss = {.name = parse_loss_row(fields).id};
  read_loss_options(fields.optional_object("config"), loss);
  return loss;
}

api::Datum parse_datum(const Fields& fields) {
  api::Datum datum;
  datum.tokens = parse_ids(fields, "tokens");
  if (fields.has("targets")) datum.targets = parse_ids(fields, "targets");
  for (const api::LossInputRow& input : api::kLossInputs) {
    if (fields.has(input.name))
      datum.inputs[input.id] = fields.floats(input.name, /*finite=*/false);
  }
  return datum;
}

void check_datum_lengths(const Fields& fields, const api::Datum& datum) {
  const auto check = [&](size_t got, std::string_view name) {
    if (got == 0 || got == datum.tokens.size()) return;
    fields.fail(name, fmt::format("got {} values, wanted {}, one for each token", got,
                                  datum.tokens.size()));
  };
  if (datum.tokens.empty()) fields.fail("tokens", "got none, wanted at least one");
  check(datum.targets.size(), "targets");
  for (const api::LossInputRow& input : api::kLossInputs)
    check(datum.inputs[input.id].size(), input.name);
}

void append_sequence(const Fields& fields, const api::Loss& loss, int64_t num_adapters,
                     ProbeRequest& request) {
  std::vector<std::string_view> names = {"adapter", "loss", "tokens", "targets"};
  for (const api::LossInputRow& input : api::kLossInputs) names.push_back(input.name);
  fields.refuse_unknown_fields(names);
  api::Datum datum = parse_datum(fields);
  check_datum_lengths(fields, datum);
  request.data.push_back(std::move(datum));
  request.sequences.push_back(
      {.slot = parse_slot(fields, num_adapters),
       .loss = fields.has("loss") ? parse_loss(fields.object("loss")) : loss});
}

// All of them: each with its datum.
void read_sequences(const Fields& fields, int64_t num_adapters, ProbeRequest& request) {
  const api::Loss loss = fields.has("loss") ? parse_loss(fields.object("loss")) : api::Loss{};
  fields.each_object("sequences", [&](const Fields& sequence) {
    append_sequence(sequence, loss, num_adapters, request);
  });
  if (request.data.empty()) fields.fail("sequences", "got none, wanted at least one");
  for (size_t s = 0; s < request.data.size(); ++s) request.sequences[s].datum = &request.data[s];
}

using WantRow = std::pair<std::string_view, bool*>;

[[noreturn]] void refuse_unknown_want(const Fields& fields, const std::string& got,
                                      std::span<const WantRow> known) {
  std::vector<std::string_view> names;
  for (const auto& [want, flag] : known) names.push_back(want);
  fields.fail("want", fmt::format("got '{}', wanted some of {}", got, fmt::join(names, ", ")));
}

void read_wants(const Fields& fields, ProbeRequest& request) {
  const WantRow known[] = {
      {"hidden_states", &request.hidden_states}, {"logits", &request.logits},
      {"logprobs", &request.logprobs},           {"loss", &request.loss},
      {"adapter_grads", &request.adapter_grads}, {"param_grads", &request.param_grads}};
  for (const std::string& name : fields.strings("want")) {
    const auto* found = std::find_if(std::begin(known), std::end(known),
                                     [&](const auto& row) { return row.first == name; });
    if (found == std::end(known)) refuse_unknown_want(fields, name, known);
    *found->second = true;
  }
}

void check_adamw(const Fields& fields, const api::AdamW& a) {
  if (a.lr < 0) fields.fail("lr", "wanted 0 or more");
  if (a.beta1 < 0 || a.beta1 >= 1) fields.fail("beta1", "wanted 0 or more, below 1");
  if (a.beta2 < 0 || a.beta2 >= 1) fields.fail("beta2", "wanted 0 or more, below 1");
  if (a.eps <= 0) fields.fail("eps", "wanted more than 0");
  if (a.weight_decay < 0) fields.fail("weight_decay", "wanted 0 or more");
  if (a.grad_clip_norm < 0) fields.fail("grad_clip_norm", "wanted 0 (off) or more");
}

api::AdamW parse_adamw(const Fields& fields) {
  const api::AdamW defaults;
  const api::AdamW adamw = {
      .lr = fields.number("lr"),
      .beta1 = fields.number_or("beta1", defaults.beta1),
      .beta2 = fields.number_or("beta2", defaults.beta2),
      .eps = fields.number_or("eps", defaults.eps),
      .weight_decay = fields.number_or("weight_decay", defaults.weight_decay),
      .grad_clip_norm = fields.number_or("grad_clip_norm", defaults.grad_clip_norm)};
  check_adamw(fields, adamw);
  return adamw;
}

ProbeTrain parse_train(const Fields& fields) {
  fields.refuse_unknown_fields(
      {"what", "steps", "lr", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"});
  ProbeTrain train;
  const std::string what = fields.string("what");
  if (what != "adapters" && what != "params")
    fields.fail("what", fmt::format("got '{}', wanted adapters or params", what));
  train.parameters = what == "params";
  train.steps = fields.integer("steps", 1, 1000000);
  train.adamw = parse_adamw(fields);
  return train;
}

uint64_t parse_seed(const Fields& fields) {
  const boost::json::value* value = fields.find("seed");
  if (value != nullptr && value->is_int64() && value->get_int64() < 0)
    fields.fail("seed", fmt::format("got {}, wanted 0 or more", value->get_int64()));
  return fields.maybe_int64_bits("seed").value_or(0);
}

api::SampleRequest parse_sample(const Fields& fields, int64_t num_adapters) {
  fields.refuse_unknown_fields({"tokens", "max_tokens", "adapter", "temperature", "top_k", "top_p",
                                "seed", "stop", "prompt_logprobs", "topk_prompt_logprobs"});
  api::SampleRequest sample;
  sample.slot = parse_slot(fields, num_adapters);
  sample.prompt = parse_ids(fields, "tokens");
  sample.max_tokens = fields.integer("max_tokens", INT64_MIN, INT64_MAX);  // the engine checks
  sample.temperature = static_cast<float>(fields.number_or("temperature", sample.temperature));
  sample.top_k = fields.integer_or("top_k", sample.top_k, INT64_MIN, INT64_MAX);
  sample.top_p = static_cast<float>(fields.number_or("top_p", sample.top_p));
  sample.seed = parse_seed(fields);
  if (fields.has("stop")) sample.stop = parse_ids(fields, "stop");
  sample.prompt_logprobs = fields.boolean_or("prompt_logprobs", false);
  sample.topk_prompt_logprobs = fields.integer_or("topk_prompt_logprobs", 0, INT64_MIN, INT64_MAX);
  return sample;
}

float parse_weight(const Fields& fields, std::string_view name) {
  const double weight = fields.number_or(name, 0.0);
  if (weight < 0 || std::isinf(static_cast<float>(weight)))
    fields.fail(name, fmt::format("got {}, wanted 0 or more", weight));
  return static_cast<float>(weight);
}

// What the losses and wants read must be there.
void check_loss_inputs(const Fields& sequence, size_t index, const ProbeRequest& request) {
  const api::Datum& datum = request.data[index];
  if (datum.targets.empty()) sequence.fail("targets", "is missing; what is wanted needs it");
  for (const api::LossInput input : api::row_of(request.sequences[index].loss.name).inputs) {
    if (input == api::LossInput::kWeights || !datum.inputs[input].empty()) continue;
    sequence.fail(api::row_of(input).name, "is missing; the loss needs it");
  }
}

void check_loss_inputs_of_sequences(const Fields& fields, const ProbeRequest& request) {
  size_t index = 0;
  fields.each_object(
      "sequences", [&](const Fields& sequence) { check_loss_inputs(sequence, index++, request); });
}

}  // namespace

int64_t ProbeRequest::longest() const {
  int64_t longest = 0;
  for (const api::Datum& datum : data) longest = std::max(longest, std::ssize(datum.tokens));
  for (const api::SampleRequest& sample : samples) {
    const auto prompt = static_cast<int64_t>(sample.prompt.size());
    const int64_t answer = std::clamp<int64_t>(sample.max_tokens, 0, INT64_MAX - prompt);
    longest = std::max(longest, prompt + answer);
  }
  return longest;
}

ProbeRequest parse_probe_request(std::string_view text, const std::string& where,
                                 int64_t num_adapters) {
  const text::JsonBody body(text, where);
  const Fields fields = body.root();
  fields.refuse_unknown_fields(
      {"loss", "sequences", "want", "mtp", "indexer_loss", "train", "sample"});
  ProbeRequest request;
  read_sequences(fields, num_adapters, request);
  read_wants(fields, request);
  request.mtp_weight = parse_weight(fields, "mtp");
  request.indexer_weight = parse_weight(fields, "indexer_loss");
  if (fields.has("train")) request.train = parse_train(fields.object("train"));
  if (fields.has("sample")) {
    fields.each_object("sample", [&](const Fields& sample) {
      request.samples.push_back(parse_sample(sample, num_adapters));
    });
  }
  if (request.needs_targets()) check_loss_inputs_of_sequences(fields, request);
  return request;
}

}  // namespace strata::apps
