// SPDX-License-Identifier: Apache-2.0
#include "apps/probe/stats.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/process_memory.h"
#include "engine/pipeline/stage_plan.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

engine::PassPlan count_pass(const engine::PipelinePlan& plan, int stage, engine::Engine& engine,
                            const engine::PassWork& work, engine::PassState& state) {
  engine::PassMeter meter(engine.backend());
  const auto whole = [&](Backend& counter) { engine::count_pass(counter, engine, work, state); };
  const auto apart = [&](Backend& counter) {
    return count_stage_pass(counter, engine, work, state, plan.defers(stage));
  };
  return plan.has_flights() ? meter.count_held(apart) : meter.count(whole);
}

// Whether backward makes this activation again (model/pass/recompute.h).
bool is_recomputed(const engine::Engine& engine, const model::SavedCost& cost) {
  const model::RecomputeRegions& regions = engine.options().regions;
  if (!regions.any()) return false;
  if (cost.tag != model::kLayerInputTag)
    return !engine.options().recompute.keeps(cost.layer, cost.tag);
  return regions.makes_stage() && !regions.keeps_layer_inputs &&
         cost.layer != engine.model().weights->part().first;
}

json::object object_of(const std::map<std::string, int64_t>& by_tag) {
  json::object out;
  for (const auto& [tag, value] : by_tag) out[tag] = value;
  return out;
}

}  // namespace

struct ProbeStats::Heaviest {
  engine::PlanShape shape;
  engine::PassPlan plan;
  std::vector<model::SavedCost> saved;
};

ProbeStats::Heaviest ProbeStats::heaviest_pass(int stage, engine::Engine& engine,
                                               const api::Batch& batch) const {
  Heaviest most = {.shape = {.pass_tokens = 0,
                             .backward = batch.gradients != api::Gradients::kNone,
                             .train_base = batch.gradients == api::Gradients::kParameters,
                             .mtp = batch.mtp_weight > 0.0f,
                             .indexer_loss = batch.indexer_weight > 0.0f},
                   .plan = {},
                   .saved = {}};
  engine::Round round;
  while (next_round(plan_, engine.options().pass_tokens, batch, round)) {
    for (size_t m = 0; m + 1 < round.firsts.size(); ++m) {
      engine::MicroBatch rows;
      const engine::PassWork work =
          rows.lay_out(engine, batch, round.firsts[m], round.firsts[m + 1]);
      engine::PassPlan counted = count_pass(plan_, stage, engine, work, rows.state());
      const bool is_first = most.shape.pass_tokens == 0;
      most.shape.pass_tokens = std::max(most.shape.pass_tokens, rows.builder().num_tokens());
      if (!is_first && counted.total() + counted.kept() <= most.plan.total() + most.plan.kept())
        continue;
      most.plan = std::move(counted);
      most.saved = rows.builder().saved_costs();
    }
  }
  return most;
}

void ProbeStats::record(engine::Runner& pipeline, const api::Batch& batch) {
  for (const auto& runner : pipeline.stages()) record_stage(*runner, batch);
  if (pipeline.is_first_rank()) sample_memory();
}

void ProbeStats::sample_memory() {
  peak_bytes_ = std::max(peak_bytes_, process_memory().anonymous);
}

void ProbeStats::record_stage(engine::StageRunner& runner, const api::Batch& batch) {
  engine::Engine& engine = runner.engine();
  Stage stage = {.rank = plan_.ranks[static_cast<size_t>(runner.stage())],
                 .layers = engine.model().weights->part().size(),
                 .peak_live = runner.peak_live()};
  const Heaviest most = heaviest_pass(runner.stage(), engine, batch);
  const int64_t trained = plan(most, runner, stage);
  stage.peak_bytes = stage.weight_bytes + trained + engine.backend().scratch().high_water() +
                     engine.backend().worker_high_water() * engine.backend().parallelism() +
                     runner.peak_live() * runner.held_bytes() + runner.border_bytes() +
                     runner.peak_deferred() * runner.deferred_bytes();
  for (const model::SavedCost& cost : most.saved) {
    const std::string tag(cost.tag);
    if (is_recomputed(engine, cost)) {
      ++stage.recomputed[tag];
    } else if (engine.options().recompute.offloads(cost.layer, cost.tag)) {
      stage.offloaded[tag] += cost.bytes;
    } else {
      stage.saved[tag] += cost.bytes;
    }
  }
  Stage& kept = stages_[static_cast<size_t>(runner.stage())];
  if (stage.planned_bytes >= kept.planned_bytes) kept = std::move(stage);
}

int64_t ProbeStats::plan(const Heaviest& most, engine::StageRunner& runner, Stage& stage) {
  if (!plan_.is_whole()) {
    const engine::StagePlan own = plan_stage(plan_, runner.stage(), runner.engine(), most.shape);
    stage.planned_bytes = own.total();
    stage.weight_bytes = own.weight_bytes;
    return own.training_bytes;
  }
  const engine::MemoryPlan memory =
      plan_memory(runner.engine(), most.shape, most.plan.total(), most.plan.file_bytes);
  stage.planned_bytes = memory.total() - engine::process_bytes();
  int64_t trained = 0;
  for (const engine::PlanItem& item : memory.items) {
    if (item.name == "weights") stage.weight_bytes = item.bytes;
    if (item.name == "adapters" || item.name == "base training") trained += item.bytes;
  }
  return trained;
}

std::string ProbeStats::json() const {
  int64_t planned = engine::process_bytes();
  std::map<std::string, int64_t> saved, offloaded, recomputed;
  const auto add = [](const auto& from, auto& to) {
    for (const auto& [tag, value] : from) to[tag] += value;
  };
  json::array stages;
  for (const Stage& stage : stages_) {
    planned += stage.planned_bytes;
    add(stage.saved, saved);
    add(stage.offloaded, offloaded);
    add(stage.recomputed, recomputed);
    stages.push_back({{"rank", stage.rank},
                      {"layers", stage.layers},
                      {"weight_bytes", stage.weight_bytes},
                      {"peak_bytes", stage.peak_bytes},
                      {"peak_live_microbatches", stage.peak_live}});
  }
  return json::serialize(json::object{{"planned_bytes", planned},
                                      {"peak_bytes", peak_bytes_},
                                      {"saved_bytes", object_of(saved)},
                                      {"offloaded_bytes", object_of(offloaded)},
                                      {"recomputed", object_of(recomputed)},
                                      {"stages", std::move(stages)}}) +
         "\n";
}

}  // namespace strata::apps
