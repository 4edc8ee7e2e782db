// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/stage_front.h"

#include <algorithm>

namespace strata::engine {
namespace {

constexpr size_t kPoints = 256;   // of a stage
constexpr size_t kCorrected = 4;  // points that are counted beforehand

}  // namespace

StageFront::StageFront(const PipelinePlan& plan, int stage, Engine& engine, const PlanShape& shape,
                       const Price& price)
    : plan_(plan),
      stage_(stage),
      engine_(engine),
      shape_(shape),
      planner_(std::make_unique<RecomputePlanner>(engine, shape, /*offloads=*/false, price)) {
  size_t choice = 0;
  for (const RecomputePlanner::Point& point : planner_->front())
    points_.push_back({point.bytes, point.cost, choice++});
  thin_out(points_, kPoints);
  correct_bytes();
}

const StagePlan& StageFront::counted(size_t choice) {
  const auto found = counted_.find(choice);
  if (found != counted_.end()) return found->second;
  PlanShape shape = shape_;
  shape.recompute = recompute(choice);
  return counted_.emplace(choice, plan_stage(plan_, stage_, engine_, shape)).first->second;
}

// Bytes of choices are but about right, and those of a pass: some are counted, and what they are
// off by is spread over those between them.
void StageFront::correct_bytes() {
  const size_t step = std::max<size_t>(1, points_.size() / kCorrected);
  std::vector<size_t> at;
  for (size_t i = 0; i + 1 < points_.size(); i += step) at.push_back(i);
  at.push_back(points_.size() - 1);
  std::vector<double> off;
  for (const size_t i : at)
    off.push_back(static_cast<double>(counted(points_[i].choice).total() - points_[i].bytes));
  for (size_t k = 0; k < at.size(); ++k) {
    const size_t end = k + 1 < at.size() ? at[k + 1] : at[k] + 1;
    for (size_t i = at[k]; i < end; ++i) {
      const double share = static_cast<double>(i - at[k]) / static_cast<double>(end - at[k]);
      const double own = k + 1 < at.size() ? off[k] + share * (off[k + 1] - off[k]) : off[k];
      points_[i].bytes += static_cast<int64_t>(own);
    }
  }
  keep_best(points_);
}

}  // namespace strata::engine
