// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/loss_curve.h"

#include <cmath>
#include <limits>

namespace strata::server {

void LossCurve::add_loss(double sum, double weight) {
  if (!std::isfinite(sum) || !(weight > 0.0)) return;
  sum_ += sum;
  weight_ += weight;
}

void LossCurve::finish_step(int64_t number) {
  if (weight_ <= 0.0 || ++steps_ < stride_) return;
  points_.push_back({number, sum_ / weight_});
  sum_ = weight_ = 0.0;
  steps_ = 0;
  if (points_.size() >= max_points_) merge_neighbours();
}

void LossCurve::add_evaluation(int64_t step, double sum, double weight) {
  const double before = weight_;
  const bool goes_on = !points_.empty() && points_.back().step == step && before > 0.0;
  if (!goes_on) sum_ = weight_ = 0.0;
  add_loss(sum, weight);
  if (weight_ <= 0.0 || (goes_on && weight_ == before)) return;
  if (goes_on) {
    points_.back().loss = sum_ / weight_;
    return;
  }
  points_.push_back({step, sum_ / weight_});
  if (points_.size() >= max_points_) merge_neighbours();
}

// Neighbours merge, and each point stands for twice as many steps.
void LossCurve::merge_neighbours() {
  for (size_t i = 0; i + 1 < points_.size(); i += 2) {
    points_[i / 2] = {points_[i + 1].step, 0.5 * (points_[i].loss + points_[i + 1].loss)};
  }
  points_.resize(points_.size() / 2);
  if (stride_ <= std::numeric_limits<int64_t>::max() / 2) stride_ *= 2;
}

}  // namespace strata::server
