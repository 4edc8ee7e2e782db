// SPDX-License-Identifier: Apache-2.0
#include "setup/stage_messages.h"

#include <memory>
#include <optional>

#include "setup/simulated_step.h"

namespace strata::apps {
namespace {

StageMessages plan_messages(const engine::RunPlan& plan, const planner::RunShape& shape, int stage,
                            engine::Engine& engine) {
  engine.set_pass_options(plan.micro_tokens, plan.recompute.recompute, plan.pipeline.regions);
  api::AdapterSlot slot = api::AdapterSlot::kBase;
  if (!shape.pass.train_base) slot = engine.plan_adapter(shape.pass.modules);
  const PlannedBatch step(shape, slot);
  StageMessages messages;
  messages.sent.resize(static_cast<size_t>(plan.pipeline.num_ranks_in_all()));
  messages.waits =
      engine::add_messages_within_stage(plan.pipeline, stage, engine, step.batch(), messages.sent);
  return messages;
}

}  // namespace

std::vector<StageMessages> plan_stage_messages(const LoadSpec& spec,
                                               const planner::Division& division,
                                               const engine::RunPlan& plan,
                                               const planner::RunShape& shape,
                                               const train::BaseStep& how) {
  if (plan.pipeline.num_alike() == 1) return {};
  const std::unique_ptr<engine::Engine> whole =
      make_planning_engine(with_planned_share(spec, division.told));
  whole->set_share({.num_owners = plan.pipeline.num_dealing()});
  const auto parts =
      make_part_engines(spec, *whole, division,
                        shape.pass.train_base ? std::optional<train::BaseStep>(how) : std::nullopt);
  std::vector<StageMessages> messages;
  for (size_t stage = 0; stage < parts.size(); ++stage)
    messages.push_back(plan_messages(plan, shape, static_cast<int>(stage), *parts[stage]));
  if (parts.empty()) messages.push_back(plan_messages(plan, shape, 0, *whole));
  return messages;
}

}  // namespace strata::apps
