// SPDX-License-Identifier: Apache-2.0
// Reference for ops/choose_tokens.h: double accumulators, naive loops, one thread.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "ops/choose_tokens.h"

namespace strata::ops::ref {

// The rules in the plainest form: sort everything, work in double. Returns id -> probability of the
// tokens that may be drawn. `margin` receives how close the top-p rule came to a decision the other
// way.
inline std::map<int32_t, double> choice_probabilities(std::span<const float> logits,
                                                      const SamplingParams& params,
                                                      double* margin = nullptr) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]);
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  if (params.temperature == 0) return {{order[0], 1.0}};
  if (params.top_k > 0 && params.top_k < std::ssize(order)) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  std::vector<double> weights;
  for (const int32_t id : order) {
    weights.push_back(std::exp((logit(id) - logit(order[0])) / params.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::map<int32_t, double> kept;
  double before = 0;
  if (margin != nullptr) *margin = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    if (params.top_p < 1 && i > 0) {
      const double distance = before / total - static_cast<double>(params.top_p);
      if (margin != nullptr) *margin = std::min(*margin, std::abs(distance));
      if (distance >= 0) break;
    }
    kept[order[i]] = weights[i];
    before += weights[i];
  }
  for (auto& [id, weight] : kept) weight /= before;
  return kept;
}

}  // namespace strata::ops::ref
