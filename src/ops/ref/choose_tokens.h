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

// A row as bias and penalties leave it, token by token.
inline std::vector<double> changed_logits(std::span<const float> logits,
                                          const TokenChoice& choice) {
  std::vector<double> out(logits.begin(), logits.end());
  for (size_t id = 0; id < out.size(); ++id) {
    for (const LogitChange& change : choice.changes)
      out[id] += change.token == static_cast<int32_t>(id) ? static_cast<double>(change.add) : 0.0;
    const auto times_in = [&](std::span<const int32_t> tokens) {
      return static_cast<double>(
          std::count(tokens.begin(), tokens.end(), static_cast<int32_t>(id)));
    };
    double in_answer = times_in(choice.before.drafts);
    for (const TokenCount& of : choice.before.answer)
      in_answer += of.token == static_cast<int32_t>(id) ? of.count : 0;
    const double repetition = choice.penalties.repetition;
    if (in_answer + times_in(choice.before.prompt) > 0)
      out[id] = out[id] > 0 ? out[id] / repetition : out[id] * repetition;
    out[id] -= choice.penalties.frequency * in_answer;
    out[id] -= in_answer > 0 ? static_cast<double>(choice.penalties.presence) : 0.0;
  }
  return out;
}

// The rules in the plainest form: sort everything, work in double. Returns id -> probability of the
// tokens that may be drawn. `margin` receives how close the rules of top-p and min-p came to a
// decision the other way.
template <typename Row>
std::map<int32_t, double> choice_probabilities(const Row& logits, const SamplingParams& params,
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
  const auto min_p = static_cast<double>(params.min_p);
  double total_kept = 0;
  for (auto at = kept.begin(); at != kept.end();) {  // the largest weighs 1, and always stays
    if (margin != nullptr && min_p > 0 && at->second < 1)
      *margin = std::min(*margin, std::abs(at->second - min_p));
    if (at->second < min_p) {
      at = kept.erase(at);
    } else {
      total_kept += (at++)->second;
    }
  }
  for (auto& [id, weight] : kept) weight /= total_kept;
  return kept;
}

}  // namespace strata::ops::ref
