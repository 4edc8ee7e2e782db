// SPDX-License-Identifier: Apache-2.0
// The oracle of attention: the textbook formula on dense row-major arrays, templated on the scalar
// (double, or std::complex<double> for derivatives by complex step). No blocks, no online softmax.
// sinks [N]: one more term a head in the softmax, without a value; null: none.
// T tokens of one sequence, N query heads, M key/value heads, H key width, U value width; row t is
// position t.
#pragma once
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

struct AttentionShape {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;     // N
  int64_t num_kv_heads = 0;  // M
  int64_t head_dim = 0;      // H
  int64_t value_dim = 0;     // U
  int64_t window = 0;        // keys that a query sees, at most; 0: all
  double score_cap = 0.0;    // scores are cap tanh(score / cap); 0: none
  bool in_chunks = false;    // the keys are those of its chunk of `window` positions

  // First key that query t sees.
  [[nodiscard]] int64_t first_key(int64_t t) const {
    if (in_chunks) return t - t % window;
    return window == 0 || window > t ? 0 : t - window + 1;
  }
  template <typename Scalar>
  [[nodiscard]] Scalar capped(Scalar score) const {
    return score_cap == 0.0 ? score : score_cap * std::tanh(score / score_cap);
  }
  [[nodiscard]] int64_t query(int64_t t, int64_t n) const { return (t * num_heads + n) * head_dim; }
  [[nodiscard]] int64_t out(int64_t t, int64_t n) const { return (t * num_heads + n) * value_dim; }
  // Key/value row of position t for query head n.
  [[nodiscard]] int64_t row(int64_t t, int64_t n) const {
    return t * num_kv_heads + n / (num_heads / num_kv_heads);
  }
  [[nodiscard]] int64_t key(int64_t t, int64_t n) const { return row(t, n) * head_dim; }
  [[nodiscard]] int64_t value(int64_t t, int64_t n) const { return row(t, n) * value_dim; }
};

inline double real_part(double value) { return value; }
inline double real_part(const std::complex<double>& value) { return value.real(); }

// p[j] of query (t, n) over keys j <= t, zero before its window; returns log(sum(exp(capped(scale *
// q k)))), with the sink's term.
template <typename Scalar>
Scalar compute_probabilities_and_lse(const AttentionShape& shape, double scale, const Scalar* q,
                                     const Scalar* k, const Scalar* sinks, int64_t t, int64_t n,
                                     std::vector<Scalar>& p) {
  p.assign(static_cast<size_t>(t + 1), Scalar(0));
  double max = sinks == nullptr ? -INFINITY : real_part(sinks[n]);
  for (int64_t j = shape.first_key(t); j <= t; ++j) {
    Scalar& score = p[static_cast<size_t>(j)];
    for (int64_t h = 0; h < shape.head_dim; ++h) {
      score += q[shape.query(t, n) + h] * k[shape.key(j, n) + h];
    }
    score = shape.capped(score * scale);
    max = std::max(max, real_part(score));
  }
  Scalar sum = sinks == nullptr ? Scalar(0) : std::exp(sinks[n] - max);
  for (auto j = static_cast<size_t>(shape.first_key(t)); j < p.size(); ++j) {
    sum += p[j] = std::exp(p[j] - max);
  }
  for (Scalar& x : p) x /= sum;
  return max + std::log(sum);
}

// out [T, N, U], lse [T, N].
template <typename Scalar>
void attention(const AttentionShape& shape, double scale, const Scalar* q, const Scalar* k,
               const Scalar* v, const Scalar* sinks, Scalar* out, Scalar* lse) {
  std::vector<Scalar> p;
  for (int64_t t = 0; t < shape.num_tokens; ++t) {
    for (int64_t n = 0; n < shape.num_heads; ++n) {
      lse[t * shape.num_heads + n] =
          compute_probabilities_and_lse(shape, scale, q, k, sinks, t, n, p);
      for (int64_t h = 0; h < shape.value_dim; ++h) {
        Scalar sum(0);
        for (int64_t j = shape.first_key(t); j <= t; ++j) {
          sum += p[static_cast<size_t>(j)] * v[shape.value(j, n) + h];
        }
        out[shape.out(t, n) + h] = sum;
      }
    }
  }
}

// d_q [T, N, H], d_k [T, M, H], d_v [T, M, U] and, where there are sinks, d_sinks [N] from d_out
// [T, N, U].
template <typename Scalar>
void attention_backward(const AttentionShape& shape, double scale, const Scalar* q, const Scalar* k,
                        const Scalar* v, const Scalar* sinks, const Scalar* d_out, Scalar* d_q,
                        Scalar* d_k, Scalar* d_v, Scalar* d_sinks) {
  for (int64_t n = 0; sinks != nullptr && n < shape.num_heads; ++n) d_sinks[n] = Scalar(0);
  for (int64_t i = 0; i < shape.query(shape.num_tokens, 0); ++i) d_q[i] = Scalar(0);
  for (int64_t i = 0; i < shape.key(shape.num_tokens, 0); ++i) d_k[i] = Scalar(0);
  for (int64_t i = 0; i < shape.value(shape.num_tokens, 0); ++i) d_v[i] = Scalar(0);
  std::vector<Scalar> p;
  std::vector<Scalar> d_p;
  for (int64_t t = 0; t < shape.num_tokens; ++t) {
    for (int64_t n = 0; n < shape.num_heads; ++n) {
      const int64_t query = shape.query(t, n);
      const int64_t out = shape.out(t, n);
      const Scalar lse = compute_probabilities_and_lse(shape, scale, q, k, sinks, t, n, p);
      d_p.assign(p.size(), Scalar(0));
      Scalar mean(0);
      for (int64_t j = shape.first_key(t); j <= t; ++j) {
        const auto at = static_cast<size_t>(j);
        for (int64_t h = 0; h < shape.value_dim; ++h) {
          // out = p v
          d_p[at] += d_out[out + h] * v[shape.value(j, n) + h];
          d_v[shape.value(j, n) + h] += p[at] * d_out[out + h];
        }
        mean += p[at] * d_p[at];
      }
      // out has no term of the sink, of which the probability is exp(sink - lse)
      if (sinks != nullptr) d_sinks[n] -= std::exp(sinks[n] - lse) * mean;
      for (int64_t j = shape.first_key(t); j <= t; ++j) {
        const auto at = static_cast<size_t>(j);
        // p = softmax(capped(scale * q k^T)); a capped score is log(p) + lse
        Scalar d_s = p[at] * (d_p[at] - mean) * scale;
        if (shape.score_cap != 0.0) {
          const Scalar y = (std::log(p[at]) + lse) / shape.score_cap;
          d_s *= Scalar(1) - y * y;
        }
        for (int64_t h = 0; h < shape.head_dim; ++h) {
          d_q[query + h] += d_s * k[shape.key(j, n) + h];
          d_k[shape.key(j, n) + h] += d_s * q[query + h];
        }
      }
    }
  }
}

}  // namespace strata::ops::ref
