// SPDX-License-Identifier: Apache-2.0
#include "trainer/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "engine/pipeline/sent_plan.h"
#include "engine/pipeline/stage_runner.h"
#include "setup/scoring.h"

namespace strata::apps {
namespace {

constexpr double kMtpWeight = 0.3;  // as DeepSeek-V3 and V4 were trained for most of their tokens

// Targets of multi-token prediction: all that are trained but a first token's.
int64_t num_mtp_trained(const data::Example& example) {
  if (example.weights.empty()) return 0;
  return std::count_if(example.weights.begin() + 1, example.weights.end(),
                       [](float weight) { return weight != 0.0f; });
}

void add_all(const std::vector<float>& values, double& sum) {
  for (const float value : values) sum += static_cast<double>(value);
}

}  // namespace

data::BatchPlanOptions batch_plan_options(const TrainSettings& settings) {
  return {.batch_tokens = settings.batch_tokens > 0 ? settings.batch_tokens : INT64_MAX,
          .batch_size = settings.batch_size,
          .micro_tokens = settings.options.micro_tokens,
          .epochs = settings.epochs,
          .steps = settings.steps,
          .seed = settings.options.seed};
}

int64_t num_steps(const TrainSettings& settings, const data::Dataset& train) {
  return data::BatchPlan(train.examples.lengths(), batch_plan_options(settings)).num_steps();
}

train::BaseStep base_step_of(const TrainOptions& options) {
  return {.muon = options.optimizer == "muon",
          .muon_momentum = options.muon_momentum,
          .router_bias_rate = options.router_bias_rate};
}

model::WithIndexers with_indexers(const TrainOptions& options) {
  return options.indexer_loss > 0 ? model::WithIndexers::kYes : model::WithIndexers::kNo;
}

std::vector<model::LoraModuleSpec> lora_modules_of(const TrainSettings& settings,
                                                   const model::ModelConfig& config) {
  const TrainOptions& options = settings.options;
  if (!options.adapter.empty()) return settings.adapter_modules;
  return model::make_adapter_specs(config, split_commas(options.targets), options.rank,
                                   options.alpha, model::parse_expert_rank(options.expert_rank),
                                   with_indexers(options));
}

TrainJob::TrainJob(const TrainSettings& settings, const TrainRun& run,
                   std::shared_ptr<engine::Runner> pipeline, const TrainData& data,
                   const TrainJob* turns_with)
    : settings_(settings),
      spec_(run.spec),
      pipeline_(std::move(pipeline)),
      data_(data),
      plan_(data.train.examples.lengths(), batch_plan_options(settings)),
      schedule_{.schedule = data::parse_lr_schedule(settings.options.lr_schedule),
                .peak = settings.lr,
                .warmup_steps = settings.warmup_steps,
                .num_steps = plan_.num_steps()} {
  if (!is_lora()) {
    train::BaseStep how = base_step_of(options());
    if (run.plan.state_in_files) how.folder = offload_folder(options().offload);
    pipeline_->enable_base_steps(how);
    return;
  }
  slot_ =
      options().adapter.empty()
          ? pipeline_->create_adapter(lora_modules_of(settings_, engine().config()), options().seed)
          : pipeline_->load_adapter(options().adapter);
  if (options().loss.recomputes_reference() && !options().adapter.empty())
    reference_slot_ = pipeline_->load_adapter(options().adapter);
  const model::LoraAdapter* first = turns_with ? &engine().adapter(turns_with->slot_) : nullptr;
  pipeline_->for_adapter(slot_, [first](model::LoraAdapter& a) { a.enable_training(first); });
}

int64_t TrainJob::num_trained_parameters() { return sizes_of_flat_blocks().front(); }

double TrainJob::mtp_weight() const {
  return pipeline_->engine().config().use_mtp ? options().mtp_weight.value_or(kMtpWeight) : 0.0;
}

std::vector<api::Datum> TrainJob::read_scaled_data(const data::Examples& examples, const Pass& pass,
                                                   const Weights& weights) const {
  if (of_pairs()) return read_pairs(examples, pass, {.pair = weights.trained, .own = weights.own});
  std::vector<api::Datum> data;
  for (const int64_t i : pass) {
    api::Datum& datum = data.emplace_back(datum_of(examples[static_cast<size_t>(i)]));
    for (float& weight : datum.inputs[api::LossInput::kWeights]) weight *= weights.trained;
  }
  return data;
}

api::BatchResult TrainJob::run_examples(const data::Examples& examples, const Pass& pass,
                                        const Weights& weights, api::Gradients gradients) {
  const std::vector<api::Datum> data = read_scaled_data(examples, pass, weights);
  api::Batch batch = {.gradients = gradients, .indexer_weight = weights.indexer};
  if (gradients != api::Gradients::kNone) batch.mtp_weight = static_cast<float>(mtp_weight());
  for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum, .slot = slot_});
  if (of_pairs()) mark_as_pairs(batch.sequences, loss_of_pairs(options().loss), references_);
  if (gradients != api::Gradients::kNone && plans_sends()) add_planned_sent(batch);
  api::BatchResult result = pipeline_->run(batch);
  if (of_pairs()) add_pair_results(batch.sequences, result.sequences, step_pairs_);
  return result;
}

void TrainJob::add_planned_sent(const api::Batch& batch) {
  const std::vector<engine::SentBytes> planned = pipeline_->plan_sends(batch, {&slot_, 1});
  planned_.resize(planned.size());
  for (size_t rank = 0; rank < planned.size(); ++rank) planned_[rank] += planned[rank];
}

std::vector<engine::SentBytes> TrainJob::plan_sent_of_next_step() {
  const std::vector<api::Datum> data = read_blank_data_of_next_step();
  api::Batch batch = {
      .gradients = is_lora() ? api::Gradients::kAdapters : api::Gradients::kParameters,
      .mtp_weight = static_cast<float>(mtp_weight()),
      .indexer_weight = static_cast<float>(options().indexer_loss)};
  for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum, .slot = slot_});
  return pipeline_->plan_sends(batch, {&slot_, 1});
}

std::vector<api::Datum> TrainJob::read_blank_data_of_next_step() {
  std::vector<api::Datum> data;
  for (const Pass& pass : plan_.plan_step(std::min(steps_done_, num_steps() - 1)).passes) {
    for (const int64_t i : pass) {
      const int64_t tokens = data_.train.examples.length(static_cast<size_t>(i));
      data.push_back({.tokens = std::vector<int32_t>(static_cast<size_t>(tokens))});
    }
  }
  return data;
}

TrainJob::Losses TrainJob::run_passes(const std::vector<Pass>& passes, const Weights& weights) {
  const auto gradients = is_lora() ? api::Gradients::kAdapters : api::Gradients::kParameters;
  if (is_divided()) return run_as_one_batch(passes, weights, gradients);
  Losses losses;
  for (const Pass& pass : passes) {
    const api::BatchResult result = run_examples(data_.train.examples, pass, weights, gradients);
    losses += {result.loss_sum, result.mtp_loss_sum, result.indexer_loss_sum};
  }
  return losses;
}

TrainJob::Losses TrainJob::sum_losses(std::span<const api::SequenceResult> results) {
  Losses sum;
  for (const api::SequenceResult& sequence : results) {
    add_all(sequence.losses, sum.decoder);
    add_all(sequence.mtp_losses, sum.mtp);
    add_all(sequence.indexer_losses, sum.indexer);
  }
  return sum;
}

TrainJob::Losses TrainJob::run_as_one_batch(const std::vector<Pass>& passes, const Weights& weights,
                                            api::Gradients gradients) {
  Pass all;
  for (const Pass& pass : passes) all.insert(all.end(), pass.begin(), pass.end());
  const api::BatchResult result = run_examples(data_.train.examples, all, weights, gradients);
  Losses losses;
  std::span<const api::SequenceResult> left = result.sequences;
  for (const Pass& pass : passes) {
    const size_t count = pass.size() * (of_pairs() ? 2 : 1);
    losses += sum_losses(left.first(count));
    left = left.subspan(count);
  }
  return losses;
}

TrainStep TrainJob::make_step_record(const data::StepPlan& plan) const {
  TrainStep done{.step = steps_done_ + 1, .epoch = plan.epoch};
  for (const Pass& pass : plan.passes) {
    for (const int64_t i : pass) {
      const data::Examples& examples = data_.train.examples;
      const auto at = static_cast<size_t>(i);
      ++done.examples;
      done.trained_tokens += examples.num_trained(at);
      done.tokens += examples.length(at);
      if (options().loss.loss == "orpo") done.own_tokens += examples.length_of_chosen(at);
      if (mtp_weight() > 0) done.mtp_tokens += num_mtp_trained(examples[at]);
    }
  }
  done.lr = data::learning_rate(schedule_, done.step);
  return done;
}

void TrainJob::set_losses(const Losses& losses, TrainStep& done) {
  done.loss = losses.decoder;
  if (of_pairs()) done.pairs = step_pairs_;
  if (mtp_weight() > 0 && done.mtp_tokens > 0) {
    done.mtp_loss = losses.mtp * static_cast<double>(done.trained_tokens) /
                    static_cast<double>(done.mtp_tokens);
  }
  if (options().indexer_loss > 0) {
    const int64_t layers = engine().model().weights->layers().num_indexers();
    done.indexer_loss = losses.indexer / static_cast<double>(done.tokens * layers);
  }
}

TrainJob::Weights TrainJob::loss_weights_of(const TrainStep& step) const {
  const int64_t parts = of_pairs() ? step.examples : step.trained_tokens;
  Weights weights = {
      .trained = 1.0f / static_cast<float>(parts),
      .indexer = static_cast<float>(options().indexer_loss / static_cast<double>(step.tokens))};
  if (step.own_tokens > 0) weights.own = 1.0f / static_cast<float>(step.own_tokens);
  return weights;
}

double TrainJob::run_optimizer_step(double lr, int64_t number) {
  const api::StepResult result = pipeline_->step(slot_, {.lr = lr,
                                                         .beta1 = options().beta1,
                                                         .beta2 = options().beta2,
                                                         .eps = options().eps,
                                                         .weight_decay = options().weight_decay,
                                                         .grad_clip_norm = options().clip});
  CHECK(result.stepped && result.step == number, result.step, number);
  return result.grad_norm;
}

TrainStep TrainJob::step() {
  if (options().loss.of_rewards()) return step_on_rewards();
  const data::StepPlan plan = plan_.plan_step(steps_done_);
  TrainStep done = make_step_record(plan);
  sent_ -= pipeline_->sent();
  step_pairs_ = {};
  if (options().loss.recomputes_reference()) {
    std::vector<int64_t> order;
    for (const Pass& pass : plan.passes) {
      for (const int64_t i : pass)
        order.push_back(data_.train.examples.order()[static_cast<size_t>(i)]);
    }
    recompute_references({data_.train.examples.store(), std::move(order)});
  }
  set_losses(run_passes(plan.passes, loss_weights_of(done)), done);
  done.grad_norm = run_optimizer_step(done.lr, done.step);
  sent_ += pipeline_->sent();
  steps_done_ = done.step;
  return done;
}

double TrainJob::evaluate() {
  if (data_.eval.examples.empty()) return std::numeric_limits<double>::quiet_NaN();
  if (options().loss.of_rewards()) return evaluate_on_rewards();
  if (of_pairs()) {
    if (options().loss.recomputes_reference()) recompute_references(data_.eval.examples);
    eval_pairs_ = score_pairs(*pipeline_, {&slot_, 1}, data_.eval, options().micro_tokens,
                              loss_of_pairs(options().loss), references_)
                      .front()
                      .total;
    return eval_pairs_->loss();
  }
  return score_dataset(*pipeline_, {&slot_, 1}, data_.eval, options().micro_tokens, WantTop::kNo)
      .front()
      .total.loss();
}

namespace {

constexpr const char* kBlocks[] = {"values", "first_moments", "second_moments"};

// The block of the router whose bias is the i-th that follows loads.
std::string bias_block(size_t i) { return fmt::format("router_bias.{}", i); }

int64_t num_values(const model::LoraModule& module) {
  return module.a.shape.num_elements() + module.b.shape.num_elements();
}

// The i-th block, of which these values begin at `first`.
StatePart flat_part(size_t i, const std::vector<int64_t>& sizes, int64_t first, TensorView values) {
  return {kBlocks[i], sizes[i], first, values};
}

// What a stage holds of the adapter. `sizes`: of the flat blocks.
void add_adapter_parts(const model::LoraAdapter& adapter, const std::vector<int64_t>& sizes,
                       std::vector<StatePart>& parts) {
  const TensorView blocks[] = {adapter.parameters(), adapter.first_moments(),
                               adapter.second_moments()};
  int64_t first = 0;
  for (const model::LoraModule& module : adapter.modules()) {
    const Shape shape = {num_values(module)};
    for (size_t i = 0; module.held() && i < std::size(blocks); ++i)
      parts.push_back(flat_part(i, sizes, first, blocks[i].part(module.a_offset, shape)));
    first += shape.num_elements();
  }
}

// What it holds of all parameters.
void add_base_parts(engine::Engine& stage, const std::vector<int64_t>& sizes,
                    std::vector<StatePart>& parts) {
  const train::BaseTrainer& trainer = stage.base_trainer();
  const std::vector<model::Parameter>& table = stage.model().weights->table();
  int64_t first = 0, second = 0;
  for (size_t index = 0; index < table.size(); ++index) {
    if (table[index].buffer) continue;
    const bool has_second = trainer.has_second_moment(index);
    const train::OwnedRows& own = trainer.own_rows(index);
    const int64_t before = (table[index].first_output + own.first) * table[index].num_cols();
    if (!own.empty()) {
      parts.push_back(flat_part(0, sizes, first + before, trainer.master(index)));
      parts.push_back(flat_part(1, sizes, first + before, trainer.first_moment(index)));
      if (has_second)
        parts.push_back(flat_part(2, sizes, second + before, trainer.second_moment(index)));
    }
    const int64_t count = table[index].whole_shape().num_elements();
    first += count;
    if (has_second) second += count;
  }
}

void add_bias_parts(const train::BaseTrainer& trainer, const std::vector<size_t>& biases,
                    std::vector<StatePart>& parts) {
  for (size_t i = 0; i < biases.size(); ++i) {
    const TensorView bias = trainer.router_bias(biases[i]);
    if (!bias.empty()) parts.push_back({bias_block(i), bias.shape.num_elements(), 0, bias});
  }
}

}  // namespace

std::vector<int64_t> TrainJob::sizes_of_flat_blocks() {
  int64_t count = 0, seconds = 0;
  if (is_lora()) {
    for (const model::LoraModule& module : engine().adapter(slot_).modules()) {
      count += num_values(module);
    }
    return {count, count, count};
  }
  const std::vector<model::Parameter>& table = engine().model().weights->table();
  for (size_t index = 0; index < table.size(); ++index) {
    if (table[index].buffer) continue;
    const int64_t values = table[index].whole_shape().num_elements();
    count += values;
    if (engine().base_trainer().has_second_moment(index)) seconds += values;
  }
  return {count, count, seconds};
}

std::vector<StatePart> TrainJob::parts_of_state() {
  std::vector<StatePart> parts;
  const std::vector<int64_t> sizes = sizes_of_flat_blocks();
  for (const auto& runner : pipeline_->stages()) {
    if (is_lora()) {
      add_adapter_parts(runner->engine().adapter(slot_), sizes, parts);
    } else {
      add_base_parts(runner->engine(), sizes, parts);
      add_bias_parts(runner->engine().base_trainer(), router_bias_indices(), parts);
    }
  }
  return parts;
}

std::vector<size_t> TrainJob::router_bias_indices() {
  return is_lora() ? std::vector<size_t>() : engine().base_trainer().router_bias_indices();
}

TensorView TrainJob::gather_router_bias(size_t index) {
  const Shape& shape = engine().model().weights->table()[index].shape;
  std::vector<float>& values = gathered_biases_[index];
  if (is_first_rank()) values.resize(static_cast<size_t>(shape.num_elements()));
  pipeline_->gather().base_values(index, engine::BaseValues::kRouterBias, values);
  return {values.data(), DType::kF32, shape};
}

std::vector<StateBlock> TrainJob::blocks_of_state() {
  std::vector<StateBlock> blocks;
  const std::vector<int64_t> sizes = sizes_of_flat_blocks();
  for (size_t i = 0; i < sizes.size(); ++i) blocks.push_back({kBlocks[i], sizes[i]});
  const std::vector<size_t> biases = router_bias_indices();
  for (size_t i = 0; i < biases.size(); ++i) {
    const Shape& shape = engine().model().weights->table()[biases[i]].shape;
    blocks.push_back({bias_block(i), shape.num_elements()});
  }
  return blocks;
}

void TrainJob::gather_state(TakeBlock take) {
  if (is_lora()) return gather_adapter_state(take);
  gather_base_state(take);
  const std::vector<size_t> biases = router_bias_indices();
  for (size_t i = 0; i < biases.size(); ++i) {
    const TensorView values = gather_router_bias(biases[i]);
    if (is_first_rank()) take(bias_block(i), values);
  }
}

void TrainJob::gather_adapter_state(TakeBlock take) {
  const model::LoraAdapter* adapter = pipeline_->gather().adapter(slot_);
  if (adapter == nullptr) return;
  take(kBlocks[0], adapter->parameters());
  take(kBlocks[1], adapter->first_moments());
  take(kBlocks[2], adapter->second_moments());
}

void TrainJob::gather_base_state(TakeBlock take) {
  using Values = engine::BaseValues;
  constexpr Values kValues[] = {Values::kMasters, Values::kFirstMoments, Values::kSecondMoments};
  const train::BaseTrainer& trainer = engine().base_trainer();
  const TensorView whole[] = {trainer.masters(), trainer.first_moments(), trainer.second_moments()};
  for (size_t i = 0; i < std::size(kBlocks); ++i) {
    if (is_divided()) {
      pipeline_->gather().all_base_values(kValues[i],
                                          [&](TensorView piece) { take(kBlocks[i], piece); });
    } else {
      take(kBlocks[i], whole[i]);
    }
  }
}

double TrainJob::broadcast_from_first_rank(double value) {
  if (pipeline_->comm().size() == 1) return value;
  pipeline_->comm().all_gather({&value, 1}, of_ranks_);
  return of_ranks_.front();
}

void TrainJob::restore_progress(int64_t steps_done, const Evaluations& evaluations) {
  steps_done_ = steps_done;
  evaluations_ = evaluations;
  for (const auto& runner : pipeline_->stages()) {
    engine::Engine& stage = runner->engine();
    if (is_lora()) {
      model::LoraAdapter& adapter = stage.adapter(slot_);
      adapter.step = steps_done * num_updates();
      adapter.refresh(stage.backend());
    } else {
      stage.base_trainer().num_steps = steps_done * num_updates();
    }
  }
  if (!is_lora()) pipeline_->refresh_base_weights();
}

}  // namespace strata::apps
