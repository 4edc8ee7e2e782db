// SPDX-License-Identifier: Apache-2.0
#include "apps/train/run_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/process_memory.h"
#include "model/adapter/specs.h"
#include "server/options/options.h"

namespace strata::apps {
namespace {

// Of examples what is in memory; and of each run of them the order of an epoch, its shuffle and
// their lengths.
int64_t bytes_of(const data::Dataset& dataset, int64_t num_runs) {
  constexpr int64_t kLists = 4 * sizeof(int64_t);
  return dataset.examples.memory_bytes() + num_runs * std::ssize(dataset.examples.order()) * kLists;
}

int64_t longest_of(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Every pass that the run will make.
void add_passes_of_run(planner::RunShape& shape, const TrainOptions& options,
                       const std::vector<int64_t>& train, const std::vector<int64_t>& eval) {
  data::BatchPlan batches(train, batch_plan_options(options));
  std::vector<int64_t> lengths;
  double total = 0.0;
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    int64_t tokens = 0;
    for (const std::vector<int64_t>& pass : batches.step(step).passes) {
      lengths.clear();
      for (const int64_t i : pass) lengths.push_back(train[static_cast<size_t>(i)]);
      add_passes(shape, lengths, true, options.micro_tokens);
      tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
    }
    shape.largest_step = std::max(shape.largest_step, tokens);
    total += static_cast<double>(tokens);
  }
  // Without a limit of examples every step but an epoch's last is about full.
  if (*options.batch_size > 0) {
    shape.step_tokens =
        static_cast<int64_t>(std::ceil(total / static_cast<double>(batches.num_steps())));
  }
  add_passes(shape, eval, false, options.micro_tokens);
}

planner::RunShape shape_of(TrainJob& job) {
  return train_shape(job.spec(), job.options(), job.engine().config(), job.train_data(),
                     job.eval_data());
}

}  // namespace

std::optional<planner::Budget> budget_of(const std::string& memory) {
  if (memory.empty()) return std::nullopt;
  return planner::Budget{server::parse_size("memory", memory), memory};
}

planner::FileSpace space_for_files(const std::string& named) {
  return {.most = file_space(named, ""), .memory = named.empty() ? usable_memory() : INT64_MAX};
}

planner::RunShape train_shape(const LoadSpec& spec, const TrainOptions& options,
                              const model::ModelConfig& config, const data::Dataset& train,
                              const data::Dataset& eval) {
  const bool is_lora = options.method == "lora";
  const std::vector<int64_t> lengths = train.examples.lengths();
  const std::vector<int64_t> evaluated = eval.examples.lengths();
  planner::RunShape shape = {
      .pass = {.backward = true,
               .train_base = !is_lora,
               .mtp = config.use_mtp,
               .indexer_loss = options.indexer_loss > 0},
      .lengths = lengths,
      .longest = std::max(longest_of(lengths), longest_of(evaluated)),
      .step_tokens = std::min(batch_plan_options(options).batch_tokens, train.num_tokens),
      .file_space = space_for_files(options.offload),
      .price = spec.limits ? engine::price_of(*spec.limits) : engine::Price()};
  add_passes_of_run(shape, options, lengths, evaluated);
  shape.pass.kv_positions = options.sample_positions;
  shape.pass.num_sampled = std::ssize(options.samples);
  const int64_t num_runs = std::max<int64_t>(1, std::ssize(options.sweep));
  shape.pass.data_bytes = bytes_of(train, num_runs) + bytes_of(eval, num_runs);
  if (train.examples.store() == eval.examples.store()) {  // which both then share
    shape.pass.data_bytes -= eval.examples.store()->memory_bytes();
  }
  if (is_lora) {
    shape.pass.modules = modules_of(options, config);
    shape.pass.num_adapters = num_runs;
  }
  return shape;
}

planner::RunShape staged_shape(const LoadSpec& spec, const TrainOptions& options,
                               const model::ModelConfig& config, const data::Dataset& train,
                               const data::Dataset& eval) {
  planner::RunShape shape = train_shape(spec, options, config, train, eval);
  shape.longest_passes.clear();
  const StageOptions& stages = options.stages;
  shape.step_tokens = (shape.step_tokens + stages.data - 1) / stages.data;
  data::BatchPlan batches(shape.lengths, batch_plan_options(options));
  std::vector<int64_t> lengths;
  for (int64_t step = 0; step < batches.num_steps(); ++step) {
    lengths.clear();
    for (const std::vector<int64_t>& pass : batches.step(step).passes) {
      for (const int64_t i : pass) lengths.push_back(shape.lengths[static_cast<size_t>(i)]);
    }
    add_micro_batches(shape, lengths, /*trained=*/true, stages.microbatches, stages.data);
  }
  const std::vector<int64_t> evaluated = eval.examples.lengths();
  std::vector<int64_t> all(evaluated.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  for (const auto& pass : data::cut_by_tokens(all, evaluated, options.micro_tokens)) {
    lengths.clear();
    for (const int64_t i : pass) lengths.push_back(evaluated[static_cast<size_t>(i)]);
    add_micro_batches(shape, lengths, /*trained=*/false, stages.microbatches, stages.data);
  }
  return shape;
}

planner::StagedPlan plan_staged(const LoadSpec& spec, const StageOptions& options,
                                const planner::RunShape& shape, const std::string& memory) {
  const std::unique_ptr<engine::Engine> whole = make_planning_engine(spec);
  const planner::Division division = division_of(whole->config(), options, spec.recompute, "");
  const std::vector<std::unique_ptr<engine::Engine>> stages =
      make_planning_stages(spec, division.told);
  planner::StagedRun run = {.whole = *whole,
                            .stages = {},
                            .division = division,
                            .shape = shape,
                            .recompute = spec.recompute.policy};
  for (const auto& stage : stages) run.stages.push_back(stage.get());
  return planner::plan_staged(run, budget_of(memory));
}

planner::StagedPlan plan_staged(const LoadSpec& spec, const TrainOptions& options,
                                const data::Dataset& train, const data::Dataset& eval) {
  model::ModelConfig config = spec.parsed.config;
  config.use_mtp = spec.mtp == model::UseMtp::kAlways;
  return plan_staged(spec, options.stages, staged_shape(spec, options, config, train, eval),
                     options.memory);
}

bool needs_files(const LoadSpec& spec, const TrainOptions& options, const data::Dataset& train,
                 const data::Dataset& eval) {
  if (options.memory.empty()) return false;
  const std::unique_ptr<engine::Engine> engine = make_planning_engine(spec);
  const planner::RunShape shape = train_shape(spec, options, engine->config(), train, eval);
  return planner::needs_files(*engine, shape, options.micro_tokens, *budget_of(options.memory));
}

planner::TrainPlan plan_of(TrainJob& job) {
  const engine::EngineOptions& options = job.engine().options();
  planner::TrainPlan plan =
      plan_train(job.engine(), shape_of(job), options.pass_tokens, options.recompute);
  plan.work = 1.0 / job.stages().data * plan.work;
  return plan;
}

void fit_memory(TrainJob& job) {
  const TrainOptions& o = job.options();
  if (o.memory.empty()) return;
  const planner::TrainPlan plan =
      fit_train(job.engine(), shape_of(job), o.micro_tokens, *budget_of(o.memory));
  if (plan.recompute.file_bytes > 0) check_offload_folder(o.offload);
  job.engine().set_pass(plan.micro_tokens, plan.recompute.recompute);
}

}  // namespace strata::apps
