// SPDX-License-Identifier: Apache-2.0
#include "trainer/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "data/batch_defaults.h"
#include "model/adapter/fused.h"
#include "model/adapter/io.h"
#include "setup/adapter_texts.h"
#include "trainer/job.h"
#include "trainer/sampler.h"

namespace strata::apps {
namespace {

constexpr double kFullRate = 1e-5;
constexpr double kNarrowRate = 5e-4;  // of models at most so wide
constexpr int64_t kNarrow = 1024;
constexpr double kWideRate = 2e-4;
constexpr int64_t kWholeRateBatch = 8;    // examples; of fewer the rate is lower
constexpr double kShareOfCompared = 0.1;  // of a default rate, where answers are compared
constexpr int64_t kPromptsOfStep = 8;     // with rewards
constexpr double kWarmupRatio = 0.05;

// The value that a run recorded of an option, where the options now do not say.
template <typename T>
void fill_from_record(const boost::json::object& recorded, const char* name,
                      std::optional<T>& value) {
  const boost::json::value* text = recorded.if_contains(name);
  if (value || text == nullptr || !text->is_string()) return;
  const std::string_view digits = text->get_string();
  T was = {};
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), was);
  if (fault == std::errc() && end == digits.data() + digits.size()) value = was;
}

// What options and records say of the settings.
struct Said {
  std::optional<int64_t> batch_size, batch_tokens, epochs, steps, warmup_steps;
  std::optional<double> lr, warmup_ratio;
};

void fill_all_from_record(const std::string& recorded, Said& o) {
  const boost::json::object was = boost::json::parse(recorded).as_object();
  // One of the two says how long a run is.
  if (o.epochs && !o.steps) o.steps = 0;
  fill_from_record(was, "steps", o.steps);
  if (o.steps.value_or(0) == 0) fill_from_record(was, "epochs", o.epochs);
  if (o.epochs == 0) o.epochs.reset();  // of a run by steps
  fill_from_record(was, "batch-size", o.batch_size);
  fill_from_record(was, "batch-tokens", o.batch_tokens);
  fill_from_record(was, "lr", o.lr);
  if (!o.warmup_ratio) fill_from_record(was, "warmup-steps", o.warmup_steps);
}

// What the options say, and the record of a run that goes on where they say nothing.
Said merge_with_record(const TrainOptions& options, const std::string& recorded) {
  Said said = {options.batch_size,   options.batch_tokens, options.epochs,      options.steps,
               options.warmup_steps, options.lr,           options.warmup_ratio};
  if (said.batch_size) *said.batch_size *= options.gradient_accumulation_steps;
  if (!recorded.empty()) fill_all_from_record(recorded, said);
  return said;
}

int64_t warmup_steps(double ratio, int64_t num_steps) {
  return static_cast<int64_t>(std::ceil(ratio * static_cast<double>(num_steps)));
}

// The modules of the adapter that training goes on from.
std::vector<model::LoraModuleSpec> read_adapter_modules(LoadSpec base, const std::string& adapter) {
  base.mtp = model::UseMtp::kNever;
  const auto engine = make_planning_engine(base);
  std::vector<model::LoraModuleSpec> specs = model::read_adapter_specs(engine->model(), adapter);
  const std::string fault = model::find_peft_export_fault(engine->model().weights->layers(), specs);
  if (!fault.empty())
    throw Error(ErrorCode::kUnsupported, fmt::format("--adapter {}: {}", adapter, fault));
  return specs;
}

void check_warmup_and_accumulation(const TrainOptions& o) {
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

TrainOptions options_of_run_alone(const TrainSettings& settings) {
  TrainOptions o = settings.options;
  if (o.sweep.empty()) return o;
  o.sweep.clear();
  o.lr = settings.lr;
  o.out = settings.out;
  o.tensorboard = settings.tensorboard;
  return o;
}

TrainSettings resolve_settings(const TrainOptions& options, const LoadSpec& spec,
                               const TrainData& data, const std::string& recorded) {
  check_warmup_and_accumulation(options);
  Said said = merge_with_record(options, recorded);
  if (options.loss.of_rewards() && !said.batch_size) said.batch_size = kPromptsOfStep;
  const data::BatchChoice batch = data::fill_batch_defaults(
      {.batch_size = said.batch_size, .batch_tokens = said.batch_tokens, .epochs = said.epochs},
      static_cast<int64_t>(data.train.examples.size()), data.train.num_tokens);
  // orpo fine-tunes on the chosen answers besides.
  const bool only_compares = options.loss.has_reference() || options.loss.of_rewards();
  const int64_t answers = options.loss.of_rewards() ? options.rollouts.group_size : 1;
  TrainSettings s = {
      .options = options,
      .stages = options.stages,
      .out = options.out,
      .tensorboard = options.tensorboard,
      .lr = said.lr ? *said.lr
                    : (only_compares ? kShareOfCompared : 1) *
                          default_learning_rate(options.method, spec.parsed.config.hidden_size,
                                                batch.batch_size.value() * answers),
      .batch_size = batch.batch_size.value(),
      .batch_tokens = batch.batch_tokens.value(),
      .epochs = batch.epochs.value(),
      .steps = said.steps.value_or(0)};
  if (!options.samples.empty())
    s.sample_positions = TrainSampler(texts_with_adapter(spec.texts, options.adapter, options.chat),
                                      options.chat, options.samples)
                             .num_cache_positions();
  if (!options.adapter.empty()) s.adapter_modules = read_adapter_modules(spec, options.adapter);
  s.warmup_steps = said.warmup_steps ? *said.warmup_steps
                                     : warmup_steps(said.warmup_ratio.value_or(kWarmupRatio),
                                                    num_steps(s, data.train));
  return s;
}

}  // namespace strata::apps
