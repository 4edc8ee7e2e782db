// SPDX-License-Identifier: Apache-2.0
// A step of a plan on a cluster: the work that engine/plan/cost.h counts as seconds of actions,
// what ranks send as messages, and the ranks' own action lists run by schedule/simulate.h.
#pragma once
#include <span>
#include <vector>

#include "api/batch.h"
#include "engine/plan/run_plan.h"
#include "planner/run_shape.h"
#include "schedule/simulate.h"
#include "setup/cluster_file.h"
#include "setup/stage_messages.h"

namespace strata::apps {

// What a step is made of: the plan was set in the engine, and the batch is the step's sequences.
struct ClusterStep {
  const engine::RunPlan& plan;
  engine::Engine& engine;
  const planner::RunShape& shape;
  const api::Batch& batch;
  std::span<const StageMessages> messages = {};  // of each stage, where it has several such ranks
};

// The batch of a step whose sequences are as long as the shape says, of tokens that are all 0.
class PlannedBatch {
 public:
  PlannedBatch(const planner::RunShape& shape, api::AdapterSlot slot);
  PlannedBatch(const PlannedBatch&) = delete;
  PlannedBatch& operator=(const PlannedBatch&) = delete;
  [[nodiscard]] const api::Batch& batch() const { return batch_; }

 private:
  std::vector<api::Datum> data_;
  api::Batch batch_;
};

schedule::Simulation simulate_step(const ClusterStep& step, const Cluster& cluster,
                                   bool keeps_spans);

// What no simulation of a step that is divided so takes less than, whatever is recomputed and fits:
// the same with actions of their operations and reads of weights alone. Of the plan it reads how
// the model is divided and into which passes, with work of any size. `weight_bytes`: of each stage.
double least_step_seconds(const ClusterStep& step, std::span<const int64_t> weight_bytes,
                          const Cluster& cluster);

// Whether every rank has the memory for what it is planned to take. `bytes`: of a pipeline's ranks.
bool fits_cluster(std::span<const int64_t> bytes, const Cluster& cluster);

}  // namespace strata::apps
