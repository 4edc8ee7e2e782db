// SPDX-License-Identifier: Apache-2.0
// StageFront: what one stage can keep of its activations where each layer is recomputed alone:
// choices by rising bytes and falling work, none of which is better in both. None depends on a
// number of bytes that is to hold it, so that more bytes only add choices. Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/pipeline/stage_plan.h"
#include "engine/plan/recompute_plan.h"

namespace strata::engine {

class StageFront {
 public:
  // Borrows all it is given. `shape`: of a micro-batch on this stage.
  StageFront(const PipelinePlan& plan, int stage, Engine& engine, const PlanShape& shape,
             const Price& price);

  struct Point {
    int64_t bytes = 0;  // of the stage, about
    double cost = 0.0;  // of what is recomputed of a micro-batch, in floating-point operations
    size_t choice = 0;  // for recompute() and counted()
  };
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  [[nodiscard]] model::Recompute recompute(size_t choice) const { return planner_->at(choice); }
  // What the stage takes with it, as its passes are counted: once.
  const StagePlan& counted(size_t choice);

 private:
  void correct_bytes();

  const PipelinePlan& plan_;
  const int stage_;
  Engine& engine_;
  const PlanShape shape_;
  std::unique_ptr<RecomputePlanner> planner_;
  std::vector<Point> points_;
  std::unordered_map<size_t, StagePlan> counted_;
};

// Of points by rising bytes and falling cost at most about so many, evenly over their bytes: both
// ends, and between them the cheapest of each share.
template <typename P>
void thin_out(std::vector<P>& points, size_t most) {
  if (points.size() <= most) return;
  const auto first = static_cast<double>(points.front().bytes);
  const double share =
      (static_cast<double>(points.back().bytes) - first) / static_cast<double>(most);
  const auto share_of = [&](const P& point) {
    return static_cast<int64_t>((static_cast<double>(point.bytes) - first) / share);
  };
  std::vector<P> kept = {points.front()};
  for (size_t i = 1; i < points.size(); ++i) {
    const bool is_last = i + 1 == points.size() || share_of(points[i + 1]) != share_of(points[i]);
    if (is_last) kept.push_back(std::move(points[i]));
  }
  points = std::move(kept);
}

// Strikes points that another is no worse than in both; the rest by rising bytes.
template <typename P>
void keep_best(std::vector<P>& points) {
  std::stable_sort(points.begin(), points.end(), [](const P& a, const P& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
  });
  std::vector<P> best;
  for (P& point : points) {
    if (best.empty() || point.cost < best.back().cost) best.push_back(std::move(point));
  }
  points = std::move(best);
}

}  // namespace strata::engine
