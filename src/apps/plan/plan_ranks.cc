// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_ranks.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <span>

#include "apps/plan/plan_asked.h"
#include "apps/plan/plan_json.h"
#include "base/error.h"
#include "engine/pipeline/sent_plan.h"
#include "planner/plan_text.h"
#include "report/table.h"
#include "setup/engine_setup.h"
#include "setup/ranks.h"
#include "setup/sent_text.h"
#include "setup/simulated_step.h"
#include "setup/simulated_text.h"
#include "setup/stage_messages.h"

namespace strata::apps {
namespace {

void check_can_simulate(const PlanOptions& options, const StageOptions& stages) {
  if (!options.machine.empty() || !options.save_machine.empty())
    refuse_plan("--cluster and --machine: give one; a cluster's file has the limits of its ranks");
  if (stages.ranks_each > 1)
    refuse_plan(
        "--cluster and --stages: ranks that share a process are not simulated; give pipeline=");
  if (stages.shard_weights)
    refuse_plan("--cluster and --shard-weights: weights on their way are not simulated yet");
}

// The stages that `--ranks` asks for; an Error for those that `strata train` refuses.
StageOptions stages_of_ranks(const PlanOptions& options, const model::ModelConfig& config) {
  const schedule::ParallelLayout layout = schedule::parse_layout(options.stages.ranks);
  check_layout(layout, config);
  check_optimizer_of_ranks(layout, options.optimizer);
  if (!options.svg.empty()) refuse_plan("--ranks and --svg: one budget is planned; give --memory");
  const StageOptions stages = stages_with_layout(stage_options_of(options), layout);
  check_memory_of_ranks(options.memory, options.offload);
  if (!options.cluster.empty()) check_can_simulate(options, stages);
  return stages;
}

// `behind`: what comes behind the plan's tables.
void print_rank_tables(const PlanOptions& options, const engine::RunPlan& plan,
                       const engine::MachineLimits& limits, const std::string& behind) {
  report::Table table({{""}, {""}});
  if (plan.pipeline.data > 1) table.add_row({"data", data_ranks_text(plan.pipeline)});
  if (plan.pipeline.expert > 1) table.add_row({"experts", expert_ranks_text(plan.pipeline)});
  planner::add_plan_rows(plan, limits, offload_folder(options.offload), table);
  fmt::print("{}{}{}", table.text(), planner::parts_text(plan), behind);
}

// What ranks of a plan send, and on a cluster when: a step was made of a batch.
void print_ranks(const PlanOptions& options, const ClusterStep& step,
                 const engine::MachineLimits& limits, const std::optional<Cluster>& cluster) {
  std::optional<schedule::Simulation> simulation;
  if (cluster) {
    const std::string& trace = options.schedule.trace;
    simulation = simulate_step(step, *cluster, /*keeps_spans=*/!trace.empty());
    if (!trace.empty()) write_simulated_trace(trace, *simulation);
  }
  if (simulation && !options.json) {
    return print_rank_tables(options, step.plan, limits,
                             simulated_table(step.plan, *simulation, *cluster));
  }
  const api::AdapterSlot slot = step.batch.sequences.front().slot;
  std::vector<engine::SentBytes> sent =
      engine::plan_sends(step.plan.pipeline, step.engine, step.batch, {&slot, 1});
  for (const StageMessages& stage : step.messages) {
    for (size_t rank = 0; rank < sent.size(); ++rank) sent[rank] += stage.sent[rank];
  }
  if (!options.json)
    return print_rank_tables(options, step.plan, limits, sent_table("a step sends", sent));
  boost::json::object line =
      run_plan_json(step.plan, !step.plan.pipeline.is_whole(), step.engine, limits);
  line["planned_sent_bytes"] = boost::json::parse(sent_json(sent));
  line["ranks"] = ranks_json(step.plan, sent, step.plan.pipeline.num_pipelines());
  if (simulation) add_simulated_json(step.plan, *simulation, *cluster, line);
  fmt::print("{}\n", boost::json::serialize(line));
}

// Plans count with limits of all ranks of a pipeline together.
engine::MachineLimits limits_of_pipeline(const Cluster& cluster,
                                         const planner::Division& division) {
  const double ranks = division.told.num_ranks();
  return {.flops = ranks * cluster.limits.flops,
          .f32_flops = ranks * cluster.limits.f32_flops,
          .bytes = ranks * cluster.limits.bytes,
          .source = cluster.limits.source};
}

}  // namespace

int print_ranks_plan(const PlanOptions& options) {
  LoadSpec spec = read_training_spec(options);
  const StageOptions stages = stages_of_ranks(options, spec.parsed.config);
  check_memory_options(options.memory, options.recompute, options.offload);
  const std::unique_ptr<engine::Engine> engine =
      make_planning_engine(with_planned_share(spec, stages));
  check_indexer_loss(options, *engine);
  const planner::Division division =
      plan_division(engine->config(), stages, spec, !options.memory.empty());
  engine->set_share({.num_owners = division.told.num_dealing()});
  if (options.method == "full") check_deferred_weight_grads(division.told, stages);
  planner::RunShape shape = make_run_shape(options, *engine, division);
  std::optional<Cluster> cluster;
  if (!options.cluster.empty())
    cluster = read_cluster_file(options.cluster, engine->model().weights->compute_dtype());
  const engine::MachineLimits limits =
      cluster ? limits_of_pipeline(*cluster, division) : resolve_machine(options, *engine);
  if (cluster || !options.machine.empty()) shape.price = engine::price_of(limits);
  const engine::RunPlan plan = plan_staged_run(spec,
                                               {.whole = *engine,
                                                .division = division,
                                                .shape = shape,
                                                .recompute = spec.recompute.policy,
                                                .memory = budget_of(options.memory)},
                                               step_of(options));
  engine->set_pass_options(plan.micro_tokens, plan.recompute.recompute, plan.pipeline.regions);
  api::AdapterSlot slot = api::AdapterSlot::kBase;
  if (!shape.pass.train_base) slot = engine->plan_adapter(shape.pass.modules);
  const PlannedBatch step(shape, slot);
  ClusterStep planned = {plan, *engine, shape, step.batch()};
  const std::vector<StageMessages> messages =
      plan_stage_messages(spec, division, plan, shape, step_of(options));
  planned.messages = messages;
  print_ranks(options, planned, limits, cluster);
  return 0;
}

}  // namespace strata::apps
