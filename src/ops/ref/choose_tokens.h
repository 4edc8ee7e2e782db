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

// A logit after the penalties of a token that was seen so often in the answer and the prompt.
inline double penalised_logit(double logit, const Penalties& penalties, double in_answer,
                              double in_prompt) {
  const double repetition = penalties.repetition;
  if (in_answer + in_prompt > 0) logit = logit > 0 ? logit / repetition : logit * repetition;
  logit -= penalties.frequency * in_answer;
  return logit - (in_answer > 0 ? static_cast<double>(penalties.presence) : 0.0);
}

inline double times_in(std::span<const int32_t> tokens, int32_t id) {
  return static_cast<double>(std::count(tokens.begin(), tokens.end(), id));
}

inline double times_in_answer(const TokensBefore& before, int32_t id) {
  double times = times_in(before.drafts, id);
  for (const TokenCount& of : before.answer) times += of.token == id ? of.count : 0;
  return times;
}

// A row as bias and penalties leave it, token by token.
inline std::vector<double> changed_logits(std::span<const float> logits,
                                          const TokenChoice& choice) {
  std::vector<double> out(logits.begin(), logits.end());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    for (const LogitChange& change : choice.changes)
      out[i] += change.token == id ? static_cast<double>(change.add) : 0.0;
    out[i] = penalised_logit(out[i], choice.penalties, times_in_answer(choice.before, id),
                             times_in(choice.before.prompt, id));
  }
  return out;
}

inline bool is_allowed(std::span<const uint32_t> allowed, int32_t id) {
  const auto i = static_cast<size_t>(id);
  return allowed.empty() || (allowed[i / 32] >> (i % 32) & 1) != 0;
}

// The ids of a row, largest logit first.
template <typename Row>
std::vector<int32_t> ids_by_logit(const Row& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto x = static_cast<double>(logits[static_cast<size_t>(a)]);
    const auto y = static_cast<double>(logits[static_cast<size_t>(b)]);
    return x != y ? x > y : a < b;
  });
  return order;
}

// exp(logit / temperature) of each id, relative to that of the first, whose logit is the largest.
template <typename Row>
std::vector<double> weights_of(const std::vector<int32_t>& ids, const Row& logits,
                               double temperature) {
  const auto logit = [&](int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]);
  };
  std::vector<double> weights;
  for (const int32_t id : ids) {
    weights.push_back(std::exp((logit(id) - logit(ids[0])) / temperature));
  }
  return weights;
}

// Those of ids, the largest weight first, before which less than top_p of all weight is.
inline std::map<int32_t, double> top_p_weights(const std::vector<int32_t>& ids,
                                               const std::vector<double>& weights, double top_p,
                                               double* margin) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::map<int32_t, double> kept;
  double before = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (top_p < 1 && i > 0) {
      const double distance = before / total - top_p;
      if (margin != nullptr) *margin = std::min(*margin, std::abs(distance));
      if (distance >= 0) break;
    }
    kept[ids[i]] = weights[i];
    before += weights[i];
  }
  return kept;
}

// The largest weighs 1, and always stays.
inline void drop_below_min_p(std::map<int32_t, double>& kept, double min_p, double* margin) {
  for (const auto& [id, weight] : kept) {
    if (margin != nullptr && min_p > 0 && weight < 1)
      *margin = std::min(*margin, std::abs(weight - min_p));
  }
  std::erase_if(kept, [&](const auto& entry) { return entry.second < min_p; });
}

// The rules in the plainest form: sort everything, work in double. Returns id -> probability of the
// tokens that may be drawn. `margin` receives how close the rules of top-p and min-p came to a
// decision the other way. `allowed` as in TokenChoice: one is at least.
template <typename Row>
std::map<int32_t, double> choice_probabilities(const Row& logits, const SamplingParams& params,
                                               double* margin = nullptr,
                                               std::span<const uint32_t> allowed = {}) {
  std::vector<int32_t> order = ids_by_logit(logits);
  std::erase_if(order, [&](int32_t id) { return !is_allowed(allowed, id); });
  if (params.temperature == 0) return {{order[0], 1.0}};
  if (margin != nullptr) *margin = 1;
  if (params.top_k > 0 && params.top_k < std::ssize(order)) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  const std::vector<double> weights =
      weights_of(order, logits, static_cast<double>(params.temperature));
  std::map<int32_t, double> kept =
      top_p_weights(order, weights, static_cast<double>(params.top_p), margin);
  drop_below_min_p(kept, static_cast<double>(params.min_p), margin);
  double total_kept = 0;
  for (const auto& [id, weight] : kept) total_kept += weight;
  for (auto& [id, weight] : kept) weight /= total_kept;
  return kept;
}

}  // namespace strata::ops::ref
