// SPDX-License-Identifier: Apache-2.0
#include "apps/train/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "apps/train/sampler.h"
#include "base/error.h"
#include "data/batch_defaults.h"
#include "model/adapter/io.h"

namespace strata::apps {
namespace {

constexpr double kFullRate = 1e-5;
constexpr double kNarrowRate = 5e-4;  // of models at most so wide
constexpr int64_t kNarrow = 1024;
constexpr double kWideRate = 2e-4;
constexpr int64_t kWholeRateBatch = 8;  // examples; of fewer the rate is lower
constexpr double kWarmupRatio = 0.05;

// The value that a run recorded of an option, where the options now do not say.
template <typename T>
void recall(const boost::json::object& recorded, const char* name, std::optional<T>& value) {
  const boost::json::value* text = recorded.if_contains(name);
  if (value || text == nullptr || !text->is_string()) return;
  const std::string_view digits = text->get_string();
  T was = {};
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), was);
  if (fault == std::errc() && end == digits.data() + digits.size()) value = was;
}

void recall_all(const std::string& recorded, TrainOptions& o) {
  const boost::json::object was = boost::json::parse(recorded).as_object();
  // One of the two says how long a run is.
  if (o.epochs && !o.steps) o.steps = 0;
  recall(was, "steps", o.steps);
  if (o.steps.value_or(0) == 0) recall(was, "epochs", o.epochs);
  if (o.epochs == 0) o.epochs.reset();  // of a run by steps
  recall(was, "batch-size", o.batch_size);
  recall(was, "batch-tokens", o.batch_tokens);
  recall(was, "lr", o.lr);
  if (!o.warmup_ratio) recall(was, "warmup-steps", o.warmup_steps);
}

void check_batch(const TrainOptions& o) {
  if (o.warmup_steps && o.warmup_ratio) {
    throw Error(ErrorCode::kInvalidArgument,
                "--warmup-ratio and --warmup-steps: both say how long the warmup is; give one");
  }
  if (o.gradient_accumulation_steps > 1 && !o.batch_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "--gradient-accumulation-steps: multiplies --batch-size; give that with it");
  }
}

}  // namespace

double default_learning_rate(const std::string& method, int64_t hidden_size, int64_t batch_size) {
  if (method != "lora") return kFullRate;
  const double rate = hidden_size <= kNarrow ? kNarrowRate : kWideRate;
  if (batch_size == 0 || batch_size >= kWholeRateBatch) return rate;
  return rate * std::sqrt(static_cast<double>(batch_size) / kWholeRateBatch);
}

TrainOptions settle(const TrainOptions& options, const LoadSpec& spec, const TrainData& data,
                    const std::string& recorded) {
  check_batch(options);
  TrainOptions o = options;
  if (o.batch_size) *o.batch_size *= o.gradient_accumulation_steps;
  o.gradient_accumulation_steps = 1;
  if (!recorded.empty()) recall_all(recorded, o);
  o.steps = o.steps.value_or(0);
  const data::BatchChoice batch = data::complete(
      {.batch_size = o.batch_size, .batch_tokens = o.batch_tokens, .epochs = o.epochs},
      static_cast<int64_t>(data.train.examples.size()), data.train.num_tokens);
  o.batch_size = batch.batch_size;
  o.batch_tokens = batch.batch_tokens;
  o.epochs = batch.epochs;
  if (!o.samples.empty()) {
    o.sample_positions = TrainSampler(spec.texts, o.samples).num_positions();
  }
  if (!o.adapter.empty()) {
    LoadSpec base = spec;
    base.mtp = model::UseMtp::kNever;
    o.adapter_modules = model::specs_of_adapter(make_planning_engine(base)->model(), o.adapter);
  }
  if (!o.lr) {
    o.lr = default_learning_rate(o.method, spec.parsed.config.hidden_size, *o.batch_size);
  }
  if (!o.warmup_steps) {
    const double share = o.warmup_ratio.value_or(kWarmupRatio);
    const auto steps = static_cast<double>(num_steps(o, data.train));
    o.warmup_steps = static_cast<int64_t>(std::ceil(share * steps));
  }
  o.warmup_ratio.reset();
  return o;
}

std::string few_steps_text(const TrainOptions& settled, int64_t num_steps) {
  if (num_steps >= data::kFewSteps) return {};
  std::string text =
      fmt::format("{} step{} only, which teaches little: ", num_steps, num_steps == 1 ? "" : "s");
  if (*settled.steps > 0) return text + "give more --steps";
  text += fmt::format("give more --epochs (now {})", *settled.epochs);
  if (*settled.batch_size != 1) text += ", a smaller --batch-size, or more examples";
  return text;
}

}  // namespace strata::apps
