#include "apps/train/job.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "apps/model_files.h"
#include "base/error.h"
#include "base/files.h"
#include "model/adapter/io.h"
#include "ops/elementwise.h"

namespace strata::apps {
namespace {

constexpr double kLoraRate = 2e-4;
constexpr double kFullRate = 1e-5;

std::vector<int64_t> lengths_of(const std::vector<data::Example>& examples) {
  std::vector<int64_t> lengths;
  for (const data::Example& example : examples)
    lengths.push_back(static_cast<int64_t>(example.tokens.size()));
  return lengths;
}

}  // namespace

TrainJob::TrainJob(const TrainOptions& options, std::unique_ptr<engine::Engine> engine,
                   data::Dataset train, data::Dataset eval)
    : options_(options),
      engine_(std::move(engine)),
      train_(std::move(train)),
      eval_(std::move(eval)),
      plan_(lengths_of(train_.examples), {.batch_tokens = options.batch_tokens,
                                          .micro_tokens = options.micro_tokens,
                                          .epochs = options.epochs,
                                          .steps = options.steps,
                                          .seed = options.seed}),
      schedule_{.schedule = data::parse_schedule(options.schedule),
                .peak = options.lr.value_or(options.method == "lora" ? kLoraRate : kFullRate),
                .warmup_steps = options.warmup_steps,
                .num_steps = plan_.num_steps()} {
  if (!is_lora()) {
    engine_->enable_base_steps(
        {.muon = options_.optimizer == "muon", .muon_momentum = options_.muon_momentum});
    return;
  }
  const auto specs =
      model::adapter_specs(engine_->config(), split_commas(options_.targets), options_.rank,
                           options_.alpha, model::parse_expert_rank(options_.expert_rank));
  slot_ = engine_->create_adapter(specs, options_.seed);
  engine_->adapter(slot_).enable_training();
}

int64_t TrainJob::num_trained_parameters() { return state().front().shape.num_elements(); }

double TrainJob::run(const std::vector<data::Example>& examples, const std::vector<int64_t>& pass,
                     float weight, api::Gradients gradients) {
  std::vector<api::Datum> data;
  for (const int64_t i : pass) {
    const data::Example& example = examples[static_cast<size_t>(i)];
    api::Datum& datum =
        data.emplace_back(api::Datum{.tokens = example.tokens, .targets = example.targets});
    for (const float w : example.weights)
      datum.inputs[api::LossInput::kWeights].push_back(w * weight);
  }
  api::Batch batch = {.gradients = gradients};
  for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum, .slot = slot_});
  return engine_->run(batch).loss_sum;
}

TrainStep TrainJob::step() {
  const data::StepPlan plan = plan_.step(steps_done_);
  TrainStep done{.step = steps_done_ + 1, .epoch = plan.epoch};
  for (const auto& pass : plan.passes) {
    for (const int64_t i : pass) {
      done.trained_tokens += train_.examples[static_cast<size_t>(i)].num_trained;
      done.tokens += static_cast<int64_t>(train_.examples[static_cast<size_t>(i)].tokens.size());
    }
  }
  const float weight = 1.0f / static_cast<float>(done.trained_tokens);
  const auto gradients = is_lora() ? api::Gradients::kAdapters : api::Gradients::kParameters;
  for (const auto& pass : plan.passes) done.loss += run(train_.examples, pass, weight, gradients);
  done.lr = data::learning_rate(schedule_, done.step);
  const api::StepResult result = engine_->step(slot_, {.lr = done.lr,
                                                       .beta1 = options_.beta1,
                                                       .beta2 = options_.beta2,
                                                       .eps = options_.eps,
                                                       .weight_decay = options_.weight_decay,
                                                       .grad_clip_norm = options_.clip});
  CHECK(result.stepped && result.step == done.step, result.step, done.step);
  done.grad_norm = result.grad_norm;
  steps_done_ = done.step;
  return done;
}

double TrainJob::evaluate() {
  if (eval_.examples.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::vector<int64_t> lengths = lengths_of(eval_.examples);
  std::vector<int64_t> all(lengths.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  double sum = 0;
  for (const auto& pass : data::cut_by_tokens(all, lengths, options_.micro_tokens)) {
    sum += run(eval_.examples, pass, 1.0f, api::Gradients::kNone);
  }
  return sum / static_cast<double>(eval_.num_trained);
}

std::vector<TensorView> TrainJob::state() {
  if (is_lora()) {
    const model::LoraAdapter& adapter = engine_->adapter(slot_);
    return {adapter.parameters(), adapter.first_moments(), adapter.second_moments()};
  }
  const train::BaseTrainer& trainer = engine_->base_trainer();
  return {trainer.masters(), trainer.first_moments(), trainer.second_moments()};
}

void TrainJob::restore(int64_t steps_done) {
  steps_done_ = steps_done;
  if (is_lora()) {
    model::LoraAdapter& adapter = engine_->adapter(slot_);
    adapter.step = steps_done;
    adapter.refresh(engine_->backend());
    return;
  }
  train::BaseTrainer& trainer = engine_->base_trainer();
  trainer.num_steps = steps_done;
  trainer.refresh(engine_->backend(), *engine_->model().weights);
}

void TrainJob::export_to(const std::string& dir) {
  if (is_lora()) {
    engine_->save_adapter(slot_, dir);
    return;
  }
  const train::BaseTrainer& trainer = engine_->base_trainer();
  const auto masters = [&](size_t index, int64_t first_row, TensorView rows) {
    const TensorView master = trainer.master(index);
    ops::copy(engine_->backend(), master.part(first_row * rows.cols(), rows.shape), rows);
  };
  const model::RowSource source(masters);
  model::save_model(engine_->backend(), engine_->model(), dir, &source);
  copy_model_files(options_.model, dir);
}

}  // namespace strata::apps
