// SPDX-License-Identifier: Apache-2.0
// Log-softmax in plain loops over a scalar S: the oracle of ops/log_softmax.h. V vocabulary.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

// log(sum exp(logit)) of `vocab` logits.
template <typename S>
S logsumexp(const S* logits, int64_t vocab) {
  S maximum = logits[0];
  for (int64_t j = 1; j < vocab; ++j) {
    if (std::real(logits[j]) > std::real(maximum)) maximum = logits[j];
  }
  S sum = 0;
  for (int64_t j = 0; j < vocab; ++j) sum += std::exp(logits[j] - maximum);
  return maximum + std::log(sum);
}

// What ops::LogitMap makes of a logit.
template <typename S>
S mapped_logit(S z, double scale, double cap) {
  return cap == 0.0 ? scale * z : cap * std::tanh(scale * z / cap);
}

// Its derivative, from the result.
inline double logit_slope(double y, double scale, double cap) {
  return cap == 0.0 ? scale : scale * (1.0 - (y / cap) * (y / cap));
}

// d_logits of one row whose target logprob has the derivative d_lp.
inline std::vector<double> log_softmax_backward(const std::vector<double>& logits, int64_t target,
                                                double d_lp) {
  std::vector<double> d_logits(logits.size());
  if (d_lp == 0) return d_logits;
  const double lse = logsumexp(logits.data(), static_cast<int64_t>(logits.size()));
  for (size_t j = 0; j < logits.size(); ++j) d_logits[j] = -d_lp * std::exp(logits[j] - lse);
  d_logits[static_cast<size_t>(target)] += d_lp;
  return d_logits;
}

}  // namespace strata::ops::ref
