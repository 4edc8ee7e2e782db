// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_json.h"

#include <algorithm>

#include "setup/sent_text.h"

namespace strata::apps {
namespace {

const char* decision_word(const model::Recompute& recompute, int64_t layer, ScratchTag tag) {
  if (recompute.offloads(layer, tag)) return "offload";
  return recompute.keeps(layer, tag) ? "keep" : "recompute";
}

// One word for a tag that is treated alike everywhere, else one for each layer of the model; null
// where a layer has no such activation.
boost::json::value decisions_json(const engine::RunPlan& plan, ScratchTag tag, int64_t num_layers) {
  const model::Recompute& recompute = plan.recompute.recompute;
  boost::json::array by_layer(static_cast<size_t>(num_layers), nullptr);
  boost::json::value word;
  bool alike = true;
  for (const engine::RecomputePlan::Row& row : plan.recompute.rows) {
    if (row.tag != tag) continue;
    for (const int64_t layer : row.layers) {
      boost::json::value& own = by_layer[static_cast<size_t>(layer)];
      own = decision_word(recompute, layer, tag);
      if (word.is_null()) word = own;
      alike = alike && word == own;
    }
  }
  return alike ? word : boost::json::value(by_layer);
}

boost::json::object items_of(const engine::RunPlan& plan) {
  boost::json::object items;
  for (const engine::PlanItem& item : plan.memory.items)
    items[engine::memory_use_name(item.use)] = item.bytes;
  return items;
}

// A server's items have underscores in their names.
boost::json::object server_items(const engine::RunPlan& plan) {
  boost::json::object items;
  for (const engine::PlanItem& item : plan.memory.items) {
    std::string name(engine::memory_use_name(item.use));
    std::ranges::replace(name, ' ', '_');
    items[name] = item.bytes;
  }
  return items;
}

boost::json::array stages_json(const engine::RunPlan& plan) {
  boost::json::array stages;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const engine::StagePlan& stage = plan.stages[i];
    stages.push_back({{"rank", plan.pipeline.ranks[i]},
                      {"layers", plan.pipeline.layers[i].size()},
                      {"bytes", stage.total()},
                      {"in_flight", stage.peak_live}});
  }
  return stages;
}

// The plan of training that nothing divides into stages.
boost::json::object training_plan_json(const engine::RunPlan& plan, const engine::Engine& engine,
                                       const engine::MachineLimits& limits) {
  const int64_t num_layers = engine.model().weights->layers().num_layers();
  boost::json::object decisions;
  for (const engine::RecomputePlan::Row& row : plan.recompute.rows) {
    decisions[row.tag] = decisions_json(plan, row.tag, num_layers);
  }
  return {{"planned_bytes", plan.memory.total()},
          {"microbatch_tokens", plan.pass.pass_tokens},
          {"decisions", decisions},
          {"seconds_per_step", step_seconds(plan, limits)},
          {"bytes", items_of(plan)},
          {"file_bytes", plan.memory.all_file_bytes()},
          {"passes_per_step", plan.num_passes},
          {"flops_per_step", plan.work.front().flops},
          {"moved_bytes_per_step", plan.work.front().bytes},
          {"probed_flops", limits.flops},
          {"probed_f32_flops", limits.f32_flops},
          {"probed_read_bytes_per_s", limits.bytes},
          {"limits", limits.source}};
}

boost::json::object staged_plan_json(const engine::RunPlan& plan,
                                     const engine::MachineLimits& limits) {
  return {{"planned_bytes", plan.memory.total()},
          {"microbatches", plan.pipeline.table.num_microbatches},
          {"microbatch_tokens", plan.pass.pass_tokens},
          {"recompute_iterations", plan.pipeline.regions.iterations},
          {"recompute_layers", plan.pipeline.regions.layers},
          {"keeps_layer_inputs", plan.pipeline.regions.keeps_layer_inputs},
          {"seconds_per_step", step_seconds(plan, limits)},
          {"bytes", items_of(plan)},
          {"file_bytes", plan.memory.all_file_bytes()},
          {"limits", limits.source},
          {"stages", stages_json(plan)}};
}

}  // namespace

boost::json::object run_plan_json(const engine::RunPlan& plan, bool in_stages,
                                  const engine::Engine& engine,
                                  const engine::MachineLimits& limits) {
  return in_stages ? staged_plan_json(plan, limits) : training_plan_json(plan, engine, limits);
}

boost::json::array ranks_json(const engine::RunPlan& plan,
                              const std::vector<engine::SentBytes>& sent, int num_pipelines) {
  boost::json::array ranks;
  const std::vector<int64_t> memory = plan.bytes_of_ranks();
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    ranks.push_back({{"rank", rank},
                     {"planned_bytes", memory[rank / static_cast<size_t>(num_pipelines)]},
                     {"planned_sent_bytes", boost::json::parse(sent_json({&sent[rank], 1}))}});
  }
  return ranks;
}

boost::json::object server_plan_json(const engine::RunPlan& plan) {
  using enum engine::MemoryUse;
  const engine::ServerShares& server = plan.server;
  const int64_t adapters = plan.memory.bytes_of(kAdapters);
  return {{"planned_bytes", server.budget},
          {"bytes", server_items(plan)},
          {"microbatch_tokens", plan.pass.pass_tokens},
          {"longest_datum", server.longest_data[0]},
          {"file_bytes", server.file_bytes[0]},
          {"adapters_of_rank_8", adapters / server.slot_rank_8},
          {"adapters_of_rank_32", adapters / server.slot_rank_32},
          {"adapters_of_max_rank", adapters / server.slot_max_rank},
          {"samples_of_2048",
           (plan.memory.bytes_of(kKvCache) + plan.memory.bytes_of(kStates)) / server.sample_bytes}};
}

}  // namespace strata::apps
