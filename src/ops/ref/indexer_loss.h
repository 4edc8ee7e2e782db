// SPDX-License-Identifier: Apache-2.0
// The indexer's loss of one query in plain loops over a scalar S: the oracle of ops/indexer_loss.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

namespace strata::ops::ref {

// What heads [N, H] of a query attend to of entries [count, H] besides keys [*, H] and sinks [N],
// summed over heads and divided by its sum.
inline std::vector<double> entry_target(const std::vector<double>& q,
                                        const std::vector<double>& keys,
                                        const std::vector<double>& entries,
                                        const std::vector<double>& sinks, double scale) {
  const size_t width = q.size() / sinks.size();
  const auto score = [&](size_t n, const std::vector<double>& rows, size_t i) {
    double dot = 0;
    for (size_t h = 0; h < width; ++h) dot += q[n * width + h] * rows[i * width + h];
    return scale * dot;
  };
  std::vector<double> target(entries.size() / width);
  double total = 0;
  for (size_t n = 0; n < sinks.size(); ++n) {
    double sum = std::exp(sinks[n]);
    for (size_t j = 0; j * width < keys.size(); ++j) sum += std::exp(score(n, keys, j));
    for (size_t i = 0; i < target.size(); ++i) sum += std::exp(score(n, entries, i));
    for (size_t i = 0; i < target.size(); ++i) {
      const double p = std::exp(score(n, entries, i)) / sum;
      target[i] += p;
      total += p;
    }
  }
  for (double& value : target) value /= total;
  return target;
}

// q [M, J], weights [M], keys [count, J].
template <typename S>
S indexer_loss(const std::vector<S>& q, const std::vector<S>& weights, const std::vector<S>& keys,
               const std::vector<double>& target, double scale) {
  const size_t width = q.size() / weights.size();
  std::vector<S> scores(target.size());
  S sum = 0;
  for (size_t i = 0; i < target.size(); ++i) {
    for (size_t h = 0; h < weights.size(); ++h) {
      S dot = 0;
      for (size_t j = 0; j < width; ++j) dot += q[h * width + j] * keys[i * width + j];
      if (std::real(dot) > 0) scores[i] += scale * weights[h] * dot;
    }
    sum += std::exp(scores[i]);
  }
  S loss = 0;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] > 0) loss += target[i] * (std::log(target[i]) - (scores[i] - std::log(sum)));
  }
  return loss;
}

}  // namespace strata::ops::ref
