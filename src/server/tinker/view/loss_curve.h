// SPDX-License-Identifier: Apache-2.0
// LossCurve: the mean loss of a run by optimizer step, in bounded memory. Losses of the requests
// between two steps count together, as the client sees them. When it is full, neighbours merge and
// each point stands for twice as many steps.
//   curve.add_loss(sum, weight);  ...  curve.finish_step(n);
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace strata::server {

class LossCurve {
 public:
  struct Point {
    int64_t step = 0;   // the last that it stands for
    double loss = 0.0;  // mean over its tokens
  };
  explicit LossCurve(std::size_t max_points = 400) : max_points_(max_points) {}

  // The sum of a request's token losses and what to divide it by; a weight of zero says nothing.
  void add_loss(double sum, double weight);
  // An optimizer step, with the number it got.
  void finish_step(int64_t number);
  // A loss that no step follows, such as an evaluation's: those behind one step are one point.
  void add_evaluation(int64_t step, double sum, double weight);

  [[nodiscard]] const std::vector<Point>& points() const { return points_; }

 private:
  void merge_neighbours();

  std::size_t max_points_;
  int64_t stride_ = 1;  // steps of a point
  int64_t steps_ = 0;   // in the point that is growing
  double sum_ = 0.0, weight_ = 0.0;
  std::vector<Point> points_;
};

}  // namespace strata::server
