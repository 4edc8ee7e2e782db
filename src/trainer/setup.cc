// SPDX-License-Identifier: Apache-2.0
// read_train_data and load_train_job (trainer/job.h): every check of `strata train` that comes
// before the first step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/function_ref.h"
#include "engine/pipeline/stage_runner.h"
#include "setup/adapter_texts.h"
#include "setup/example_files.h"
#include "setup/machine_file.h"
#include "setup/ranks.h"
#include "setup/scoring.h"
#include "setup/shared_options.h"
#include "setup/text_stack.h"
#include "trainer/job.h"
#include "trainer/option_checks.h"
#include "trainer/options.h"

namespace strata::apps {
namespace {

constexpr int64_t kMostSampleRows = 64;  // where nothing says how many
constexpr int64_t kPage = 64;            // positions of the cache that are taken at once

void check_evaluation_options(const TrainOptions& o, const data::Dataset& eval) {
  if (!eval.examples.empty()) return;
  const bool is_for_nothing = o.eval_every && o.samples.empty();  // samples are taken then too
  const char* name = o.keep_best.value_or(false) ? "--keep-best"
                     : o.early_stop > 0          ? "--early-stop"
                     : is_for_nothing            ? "--eval-every"
                                                 : nullptr;
  if (name == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: there are no evaluation examples; give --eval, or --eval-fraction "
                          "above 0",
                          name));
}

model::UseMtp use_mtp(const TrainOptions& options) {
  if (options.loss.loss != "cross_entropy") return model::UseMtp::kNever;
  if (!options.mtp_weight)
    return options.method == "full" ? model::UseMtp::kIfThere : model::UseMtp::kNever;
  return *options.mtp_weight > 0 ? model::UseMtp::kAlways : model::UseMtp::kNever;
}

void check_has_router_bias(const TrainOptions& options, const model::LoadedModel& model) {
  const std::vector<model::Parameter>& table = model.weights->table();
  if (options.router_bias_rate == 0) return;
  for (const model::Parameter& parameter : table) {
    if (parameter.row != nullptr && parameter.row->balances) return;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--router-bias-rate: no router of {} ({}) has a bias", model.dir,
                          model.config.architecture));
}

bool adapts_indexers(const TrainSettings& settings, const model::ModelConfig& config,
                     const model::LayerTable& layers) {
  const auto specs = lora_modules_of(settings, config);
  return std::any_of(specs.begin(), specs.end(), [&](const model::LoraModuleSpec& spec) {
    return layers.targets(spec.layer)[static_cast<size_t>(spec.target)].of_indexer;
  });
}

// Indexers are there, and train.
void check_indexer_loss_option(const TrainSettings& settings, const model::LoadedModel& model) {
  const TrainOptions& options = settings.options;
  if (options.indexer_loss == 0) return;
  const model::LayerTable& layers = model.weights->layers();
  if (layers.num_indexers() == 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--indexer-loss: no layer of {} ({}) has an indexer", model.dir,
                            model.config.architecture));
  }
  if (options.method != "lora" || adapts_indexers(settings, model.config, layers)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--indexer-loss: no module of an indexer trains; --targets: got '{}', "
                          "want all-linear, or q_b_proj, kv_proj, gate_proj or weights_proj among "
                          "them",
                          options.targets));
}

// What is in memory of examples; for each run of them the order of an epoch, its shuffle and their
// lengths, and for pairs what the reference model gives both answers.
int64_t dataset_bytes(const data::Dataset& dataset, int64_t num_runs) {
  constexpr int64_t kLists = 4 * sizeof(int64_t), kReferences = 2 * 40;
  const int64_t each = kLists + (dataset.examples.has_pairs() ? kReferences : 0);
  return dataset.examples.memory_bytes() + data::record_bytes(dataset) +
         num_runs * std::ssize(dataset.examples.order()) * each;
}

int64_t data_bytes(const TrainData& data, int64_t num_runs) {
  const int64_t bytes = dataset_bytes(data.train, num_runs) + dataset_bytes(data.eval, num_runs);
  const auto store = data.eval.examples.store();
  if (data.train.examples.store() != store) return bytes;
  return bytes - store->memory_bytes() - data::record_bytes(data.eval);
}

int64_t longest_of(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Positions of the cache's pages for a sampled answer and its prompt, which its group keeps too.
int64_t positions_of_row(int64_t longest) { return ((longest + kPage - 1) / kPage + 1) * kPage; }

// The lengths of each pass's examples.
std::vector<std::vector<int64_t>> lengths_by_pass(const data::StepPlan& step,
                                                  const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int64_t>> passes;
  for (const std::vector<int64_t>& pass : step.passes) {
    std::vector<int64_t>& of_pass = passes.emplace_back();
    for (const int64_t i : pass) of_pass.push_back(lengths[static_cast<size_t>(i)]);
  }
  return passes;
}

int64_t sum_of(const std::vector<std::vector<int64_t>>& lengths) {
  int64_t sum = 0;
  for (const std::vector<int64_t>& pass : lengths)
    sum = std::accumulate(pass.begin(), pass.end(), sum);
  return sum;
}

// Adds every pass that the run will make, and sets the sizes of its steps.
void measure_passes(planner::RunShape& shape, const TrainSettings& settings,
                    const planner::Division& division, const std::vector<int64_t>& eval) {
  data::BatchPlan batches(shape.lengths, batch_plan_options(settings));
  double total = 0.0;
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    const auto passes = lengths_by_pass(batches.plan_step(step), shape.lengths);
    const int64_t tokens = sum_of(passes);
    planner::add_step_to_longest_passes(shape, division, passes);
    shape.largest_step = std::max(shape.largest_step, tokens);
    total += static_cast<double>(tokens);
  }
  // Without a limit of examples every step but an epoch's last is about full.
  if (settings.batch_size > 0) {
    shape.step_tokens =
        static_cast<int64_t>(std::ceil(total / static_cast<double>(batches.num_steps())));
  }
  planner::add_evaluation_to_longest_passes(shape, division, eval);
  // The reference model goes over all of them.
  if (settings.options.loss.has_reference())
    planner::add_evaluation_to_longest_passes(shape, division, shape.lengths);
}

// The lengths of prompts with their longest answers.
std::vector<int64_t> answered_lengths(const data::Dataset& prompts, const TrainOptions& options) {
  std::vector<int64_t> lengths = prompts.examples.lengths();
  for (int64_t& length : lengths) length += options.rollouts.max_tokens - 1;
  return lengths;
}

// How long answers are nobody knows before, so that a pass may have as many tokens as its limit.
void set_passes_of_rewards(planner::RunShape& shape, const TrainSettings& settings,
                           const planner::Division& division, const TrainData& data) {
  const auto group = static_cast<size_t>(settings.options.rollouts.group_size);
  data::BatchPlan batches(data.train.examples.lengths(), batch_plan_options(settings));
  std::vector<std::vector<int64_t>> largest(1);
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    std::vector<int64_t> lengths;
    for (const auto& pass : lengths_by_pass(batches.plan_step(step), shape.lengths)) {
      for (const int64_t length : pass) lengths.insert(lengths.end(), group, length);
    }
    const int64_t tokens = sum_of({lengths});
    if (tokens <= shape.largest_step) continue;
    shape.largest_step = tokens;
    largest.front() = std::move(lengths);
  }
  shape.step_tokens = shape.largest_step;
  if (!division.is_whole()) planner::add_step_to_longest_passes(shape, division, largest);
}

planner::RunShape make_run_shape(const LoadSpec& spec, const TrainSettings& settings,
                                 const model::ModelConfig& config,
                                 const planner::Division& division, const TrainData& data,
                                 int64_t sample_rows) {
  const TrainOptions& options = settings.options;
  const auto& [train, eval] = data;
  const bool is_lora = options.method == "lora";
  const bool of_rewards = options.loss.of_rewards();
  const std::vector<int64_t> lengths =
      of_rewards ? answered_lengths(train, options) : train.examples.lengths();
  const std::vector<int64_t> evaluated =
      of_rewards ? answered_lengths(eval, options) : eval.examples.lengths();
  planner::RunShape shape = {
      .pass = {.backward = true,
               .train_base = !is_lora,
               .mtp = config.use_mtp,
               .indexer_loss = options.indexer_loss > 0},
      .micro_tokens = options.micro_tokens,
      .lengths = lengths,
      .longest = std::max(longest_of(lengths), longest_of(evaluated)),
      .step_tokens = std::min(batch_plan_options(settings).batch_tokens, train.num_tokens),
      .file_space = measure_space_for_files(options.offload),
      .price = spec.limits ? engine::price_of(*spec.limits) : engine::Price()};
  if (of_rewards) {
    set_passes_of_rewards(shape, settings, division, data);
  } else {
    measure_passes(shape, settings, division, evaluated);
  }
  // The cache holds one or the other.
  shape.pass.kv_positions =
      std::max(settings.sample_positions, sample_rows * positions_of_row(shape.longest));
  shape.pass.num_sampled = std::max(std::ssize(options.samples), 2 * sample_rows);
  const int64_t num_runs = std::max<int64_t>(1, std::ssize(options.sweep));
  shape.pass.data_bytes = data_bytes(data, num_runs);
  if (is_lora) {
    shape.pass.modules = lora_modules_of(settings, config);
    const bool keeps_start = options.loss.recomputes_reference() && !options.adapter.empty();
    shape.pass.num_adapters = num_runs + (keeps_start ? 1 : 0);
  }
  return shape;
}

// Ranks of the data, the tensors and the experts are alike: each plans what the first one has.
std::unique_ptr<engine::Engine> make_whole_planning_engine(const LoadSpec& spec,
                                                           const engine::PipelinePlan& told,
                                                           int ranks_here) {
  const int threads = told.num_pipelines() > 1 ? threads_of(0, ranks_here, spec.threads) : 0;
  auto engine = make_planning_engine(spec, /*draft_tokens=*/0, /*part=*/{}, threads);
  engine->set_share({.num_owners = told.num_dealing()});
  return engine;
}

bool has_files(const engine::RunPlan& plan) {
  return plan.weights_in_files || plan.state_in_files || plan.memory.activation_file_bytes > 0;
}

// The examples that are trained on, as often as their files' weights say.
data::Dataset weighted_by_file(const data::Dataset& train, const std::vector<int64_t>& kept,
                               uint64_t seed) {
  std::vector<data::SourceRange> ranges;
  for (const data::DataFile& file : train.files) {
    ranges.push_back({file.weight, file.first, file.count});
  }
  data::Dataset out = data::with_order(train, data::weighted_order(ranges, kept, seed));
  if (!out.examples.empty()) return out;
  throw Error(ErrorCode::kInvalidArgument,
              "--data: the weights leave no example to train on; give larger ones");
}

}  // namespace

LoadSpec read_train_spec(const TrainOptions& options) {
  check_options(options);
  check_option_combinations(options);
  check_method_in_4bit(options.load_in_4bit, options.method);
  EngineSetup setup = options;
  setup.longest = options.max_length;
  LoadSpec spec = read_spec(setup);
  spec.mtp = use_mtp(options);
  spec.weights = usable_weights(spec.weights, options.method);
  if (!options.machine.empty()) spec.limits = read_machine_file(options.machine, spec.dtype);
  return spec;
}

namespace {

// Tokens of an example, at most; a prompt leaves space for its answer.
int64_t longest_example(const TrainOptions& options) {
  return options.max_length - (options.loss.of_rewards() ? options.rollouts.max_tokens : 0);
}

// Answers that are sampled at once, where nothing says how many.
int64_t default_sample_rows(const TrainSettings& settings) {
  const int64_t group = settings.options.rollouts.group_size;
  return std::max(group, std::min(kMostSampleRows, settings.batch_size * group));
}

}  // namespace

TrainData read_train_data(const TrainOptions& options, const LoadSpec& spec) {
  const std::vector<data::Source> sources = data::find_sources("data", options.data);
  const std::vector<data::Source> of_eval =
      data::find_sources("eval", options.eval, data::Weights::kNone);
  const TextStack text(texts_with_adapter(spec.texts, options.adapter, options.chat), options.chat);
  const ReadChoice choice = {.train_on = options.train_on,
                             .max_length = longest_example(options),
                             .overlong = options.overlong,
                             .fields = options.fields,
                             .pairs = options.loss.of_pairs(),
                             .prompts = options.loss.of_rewards()};
  const data::Dataset all = read_examples("data", sources, text, choice);
  data::Dataset eval;
  std::vector<int64_t> kept = all.examples.order();
  if (!of_eval.empty()) {
    eval = read_examples("eval", of_eval, text, choice);
  } else if (options.eval_fraction > 0) {
    data::EvalSplit split = data::split_for_eval(static_cast<int64_t>(all.examples.size()),
                                                 options.eval_fraction, options.seed);
    eval = data::with_order(all, std::move(split.eval));
    eval.num_too_long = 0;
    kept = std::move(split.train);
  }
  check_evaluation_options(options, eval);
  if (options.loss.of_rewards()) {
    check_reward(options.reward, text, all);
    check_reward(options.reward, text, eval);
  }
  return {.train = weighted_by_file(all, kept, options.seed), .eval = std::move(eval)};
}

namespace {

// Plans with as many rows as --sample-rows says, or else as fit into --memory: a group at least.
void plan_most_rows(const TrainSettings& settings, FunctionRef<void(int64_t)> plan_with_rows) {
  const TrainOptions& options = settings.options;
  const int64_t group = options.rollouts.group_size;
  const int64_t most = options.rollouts.sample_rows.value_or(default_sample_rows(settings));
  if (options.memory.empty() || options.rollouts.sample_rows) return plan_with_rows(most);
  for (int64_t rows = most; rows > group; rows = std::max(group, rows / 2)) {
    try {
      return plan_with_rows(rows);
    } catch (const Error&) {
      continue;  // with a group alone it says what is too much
    }
  }
  plan_with_rows(group);
}

}  // namespace

planner::RunShape shape_of_first_step(const LoadSpec& spec, const TrainSettings& settings,
                                      const model::ModelConfig& config,
                                      const planner::Division& division, const TrainData& data) {
  planner::RunShape shape = make_run_shape(spec, settings, config, division, data, 0);
  data::BatchPlan batches(shape.lengths, batch_plan_options(settings));
  const auto passes = lengths_by_pass(batches.plan_step(0), shape.lengths);
  shape.step_tokens = sum_of(passes);
  shape.lengths.clear();
  for (const std::vector<int64_t>& pass : passes)
    shape.lengths.insert(shape.lengths.end(), pass.begin(), pass.end());
  return shape;
}

TrainRun plan_train_run(const LoadSpec& asked, const TrainSettings& settings, const TrainData& data,
                        int ranks_here) {
  const TrainOptions& options = settings.options;
  TrainRun run = {.spec = asked, .plan = {}};
  LoadSpec spec = asked;
  const bool has_mtp = resolve_use_mtp(spec);
  spec.mtp = has_mtp ? model::UseMtp::kAlways : model::UseMtp::kNever;
  model::ModelConfig config = spec.parsed.config;
  config.use_mtp = has_mtp;
  const planner::Division division =
      plan_division(config, settings.stages, spec, !options.memory.empty());
  if (options.method == "full") check_deferred_weight_grads(division.told, settings.stages);
  spec = with_planned_share(std::move(spec), division.told);
  const auto engine = make_whole_planning_engine(spec, division.told, ranks_here);
  check_has_router_bias(options, engine->model());
  const auto plan_with_rows = [&](int64_t rows) {
    const planner::RunShape shape =
        make_run_shape(spec, settings, engine->config(), division, data, rows);
    run.sample_rows = rows;
    run.plan = plan_staged_run(spec,
                               {.whole = *engine,
                                .division = division,
                                .shape = shape,
                                .recompute = spec.recompute.policy,
                                .memory = budget_of(options.memory)},
                               base_step_of(options));
  };
  if (!options.loss.of_rewards()) {
    plan_with_rows(0);
  } else {
    plan_most_rows(settings, plan_with_rows);
  }
  check_indexer_loss_option(settings, engine->model());
  if (has_files(run.plan)) check_offload_folder(options.offload);
  return run;
}

std::shared_ptr<engine::Runner> load_train_model(Comm& comm, const TrainRun& run,
                                                 const TrainSettings& settings,
                                                 const TrainData& data) {
  std::shared_ptr<engine::Runner> pipeline =
      load_runner(comm, run.plan, run.spec, {.pass_tokens = settings.options.micro_tokens});
  for (const auto& stage : pipeline->stages())
    stage->engine().set_pass_options(run.plan.micro_tokens, run.plan.recompute.recompute);
  if (comm.rank() > 0) return pipeline;  // the first one has read the data
  const int64_t vocab_size = pipeline->engine().config().vocab_size;
  check_tokens_in_vocabulary(data.train, vocab_size);
  check_tokens_in_vocabulary(data.eval, vocab_size);
  return pipeline;
}

std::unique_ptr<TrainJob> load_train_job(Comm& comm, const TrainRun& run,
                                         const TrainSettings& settings, const TrainData& data) {
  return std::make_unique<TrainJob>(settings, run, load_train_model(comm, run, settings, data),
                                    data);
}

}  // namespace strata::apps
