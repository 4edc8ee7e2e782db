// SPDX-License-Identifier: Apache-2.0
// The choice of experts in plain loops over a scalar S, as HF's Qwen3MoeTopKRouter and
// DeepseekV3TopkRouter spell it: the oracle of ops/router.h. E experts, K chosen.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/router.h"

namespace strata::ops::ref {

template <typename S>
std::vector<S> router_scores(RouterScores kind, const std::vector<S>& logits) {
  std::vector<S> scores;
  S sum = 0;
  for (const S& l : logits) {
    switch (kind) {
      case RouterScores::kSoftmax:
        scores.push_back(std::exp(l));
        break;
      case RouterScores::kSigmoid:
        scores.push_back(1.0 / (1.0 + std::exp(-l)));
        break;
      case RouterScores::kSqrtSoftplus:
        scores.push_back(std::sqrt(std::log(1.0 + std::exp(l))));
        break;
      case RouterScores::kLogit:
        scores.push_back(l);
        break;
    }
    sum += scores.back();
  }
  for (S& score : scores) score /= kind == RouterScores::kSoftmax ? sum : S(1);
  return scores;
}

// The experts of the top_groups groups whose two best choices, or whose best one, have the largest
// sum.
inline std::vector<int32_t> experts_of_best_groups(const RouterArgs& args,
                                                   const std::vector<double>& choice) {
  const size_t size = choice.size() / static_cast<size_t>(args.num_groups);
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < static_cast<size_t>(args.num_groups); ++g) {
    std::vector<double> of(choice.begin() + static_cast<int64_t>(g * size),
                           choice.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(of.rbegin(), of.rend());
    groups.emplace_back(-(of[0] + (size > 1 && !args.one_best ? of[1] : 0.0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<int32_t> experts;
  for (size_t g = 0; g < static_cast<size_t>(args.top_groups); ++g) {
    for (size_t i = 0; i < size; ++i)
      experts.push_back(static_cast<int32_t>(groups[g].second * size + i));
  }
  return experts;
}

// Best first; `bias` [E] or null.
inline std::vector<int32_t> chosen_experts(const RouterArgs& args,
                                           const std::vector<double>& scores, const float* bias) {
  std::vector<double> choice = scores;
  for (size_t i = 0; i < choice.size() && bias != nullptr; ++i) choice[i] += double{bias[i]};
  std::vector<int32_t> order = experts_of_best_groups(args, choice);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const double x = choice[static_cast<size_t>(a)], y = choice[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.resize(static_cast<size_t>(args.top_k));
  return order;
}

template <typename S>
std::vector<S> router_weights(const RouterArgs& args, const std::vector<S>& scores,
                              const std::vector<int32_t>& ids) {
  std::vector<S> weights;
  S sum = 0;
  for (const int32_t id : ids) {
    const S& score = scores[static_cast<size_t>(id)];
    weights.push_back(args.scores == RouterScores::kLogit ? 1.0 / (1.0 + std::exp(-score)) : score);
    sum += weights.back();
  }
  for (S& weight : weights) weight *= args.scale / (args.norm ? sum : S(1));
  return weights;
}

}  // namespace strata::ops::ref
