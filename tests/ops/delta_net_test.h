// SPDX-License-Identifier: Apache-2.0
// Data, calls and derived error bounds for the tests of the gated delta rule. T rows, Kh key heads,
// Vh value heads, dk and dv their widths.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/delta_net.h"
#include "ops/ref/delta_net.h"
#include "tests/ops/op_test.h"

namespace strata::ops::testing {

struct DeltaCase {
  std::vector<int64_t> lengths;
  DeltaNetShape shape{.num_key_heads = 1, .num_value_heads = 1, .key_dim = 16, .value_dim = 16};
  double decay = 0.3;  // g = -decay e^x, x normal
  int64_t stride = 0;  // of qkv, log_decay and beta beyond their width

  [[nodiscard]] int64_t num_tokens() const {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }
  [[nodiscard]] Shape qkv_shape() const { return {num_tokens(), shape.width()}; }
  [[nodiscard]] Shape head_shape() const { return {num_tokens(), shape.num_value_heads}; }
  [[nodiscard]] Shape out_shape() const {
    return {num_tokens(), shape.num_value_heads, shape.value_dim};
  }
  [[nodiscard]] ref::DeltaNetShape ref_shape(int64_t length) const {
    return {length, shape.num_key_heads, shape.num_value_heads, shape.key_dim, shape.value_dim};
  }
  [[nodiscard]] std::string name() const {
    return "Kh " + std::to_string(shape.num_key_heads) + " Vh " +
           std::to_string(shape.num_value_heads) + " dk " + std::to_string(shape.key_dim) + " dv " +
           std::to_string(shape.value_dim) + " T " + std::to_string(num_tokens()) + " decay " +
           std::to_string(decay);
  }
};

struct DeltaData {
  DeltaData(const DeltaCase& c, DType type)
      : qkv(random_buffer(type, c.qkv_shape(),
                          {.seed = 1, .row_stride = c.stride + c.shape.width()})),
        log_decay(random_buffer(DType::kF32, c.head_shape(),
                                {.seed = 2, .row_stride = c.stride + c.shape.num_value_heads})),
        beta(random_buffer(DType::kF32, c.head_shape(),
                           {.seed = 3, .row_stride = c.stride + c.shape.num_value_heads})),
        d_out(random_buffer(type, c.out_shape(), {.seed = 4})) {
    for (int64_t i = 0; i < log_decay.size(); ++i) {
      log_decay.set(i, -c.decay * std::exp(log_decay.get(i)));
      beta.set(i, 1 / (1 + std::exp(-beta.get(i))));
    }
  }
  Buffer qkv;
  Buffer log_decay;
  Buffer beta;
  Buffer d_out;
};

// Whole sequences, without state.
inline std::vector<StateSegment> whole_segments(const DeltaCase& c) {
  std::vector<StateSegment> segments;
  int64_t begin = 0;
  for (const int64_t length : c.lengths) {
    segments.push_back({.begin = begin, .end = begin + length});
    begin += length;
  }
  return segments;
}

inline DeltaNetArgs delta_args(const DeltaCase& c, const DeltaData& data,
                               std::span<const StateSegment> segments) {
  return {c.shape, data.qkv, data.log_decay, data.beta, segments};
}

inline Buffer run_delta(Backend& backend, const DeltaCase& c, const DeltaData& data,
                        std::span<const StateSegment> segments) {
  Buffer out(data.qkv.view().dtype, c.out_shape());
  delta_net(backend, delta_args(c, data, segments), out);
  return out;
}

struct DeltaGrads {
  Buffer d_qkv;
  Buffer d_log_decay;
  Buffer d_beta;
};

inline DeltaGrads run_delta_backward(Backend& backend, const DeltaCase& c, const DeltaData& data,
                                     std::span<const StateSegment> segments, DType result) {
  DeltaGrads grads{Buffer(result, c.qkv_shape(), c.stride + c.shape.width()),
                   Buffer(DType::kF32, c.head_shape(), c.stride + c.shape.num_value_heads),
                   Buffer(DType::kF32, c.head_shape(), c.stride + c.shape.num_value_heads)};
  delta_net_backward(backend, delta_args(c, data, segments), data.d_out, grads.d_qkv,
                     grads.d_log_decay, grads.d_beta);
  return grads;
}

// A double and a bound, to first order, of how far fp32 arithmetic of the same operations is from
// it: each operation rounds once (u = 2^-24 of its result) and hands on the errors of its operands
// times the partial derivatives' magnitudes.
struct Tracked {
  double value = 0;
  double error = 0;
};

constexpr double kUnit = 0x1.0p-24;

inline Tracked fma(Tracked a, Tracked b, Tracked c) {
  const double value = a.value * b.value + c.value;
  // The product's own rounding where it is not fused, and the partial sums of other associations.
  return {value, std::abs(a.value) * b.error + std::abs(b.value) * a.error + c.error +
                     kUnit * (std::abs(a.value * b.value) + std::abs(value))};
}
inline Tracked operator*(Tracked a, Tracked b) { return fma(a, b, {}); }
inline Tracked operator+(Tracked a, Tracked b) { return fma({1, 0}, b, a); }
inline Tracked operator-(Tracked a) { return {-a.value, a.error}; }
// The vector exponential is good to 2 u; below -104 it is zero.
inline Tracked exp(Tracked x) {
  const double value = std::exp(x.value);
  return {value, value * (x.error + 2 * kUnit)};
}

using TrackedRows = std::vector<std::vector<Tracked>>;

inline TrackedRows tracked(int64_t rows, int64_t cols) {
  return TrackedRows(static_cast<size_t>(rows), std::vector<Tracked>(static_cast<size_t>(cols)));
}

// The chunk form of one value head of one sequence in tracked arithmetic, forward and backward:
// plain loops over what ops/delta_net.h says, and its derivative. Rows are [T][...].
class TrackedDelta {
 public:
  TrackedDelta(const ref::DeltaNetShape& shape, int64_t head, const double* qkv, const double* g,
               const double* beta, const double* d_out)
      : s_(shape),
        q_(tracked(s_.num_tokens, s_.key_dim)),
        k_(q_),
        v_(tracked(s_.num_tokens, s_.value_dim)),
        d_o_(v_),
        g_(tracked(s_.num_tokens, 1)),
        beta_(g_),
        out(v_),
        d_q(q_),
        d_k(q_),
        d_v(v_),
        d_g(g_),
        d_beta(g_),
        z_(v_),
        u_(v_) {
    for (int64_t t = 0; t < s_.num_tokens; ++t) {
      const auto at = static_cast<size_t>(t);
      g_[at][0] = {g[s_.head(t, head)], 0};
      beta_[at][0] = {beta[s_.head(t, head)], 0};
      q_factor_.push_back(
          normalise(qkv + s_.q(t, head), 1 / std::sqrt(double(s_.key_dim)), q_[at]));
      k_factor_.push_back(normalise(qkv + s_.k(t, head), 1, k_[at]));
      for (int64_t e = 0; e < s_.value_dim; ++e) {
        v_[at][static_cast<size_t>(e)] = {qkv[s_.v(t, head) + e], 0};
        d_o_[at][static_cast<size_t>(e)] = {d_out[s_.head(t, head) * s_.value_dim + e], 0};
      }
    }
    states_.push_back(tracked(s_.key_dim, s_.value_dim));
    for (int64_t begin = 0; begin < s_.num_tokens; begin += kDeltaChunk) forward(begin);
    TrackedRows d_state = tracked(s_.key_dim, s_.value_dim);
    for (int64_t c = static_cast<int64_t>(states_.size()) - 2; c >= 0; --c) backward(c, d_state);
    for (size_t t = 0; t < q_.size(); ++t) {
      through_norm(q_[t], q_factor_[t], static_cast<double>(s_.key_dim), d_q[t]);
      through_norm(k_[t], k_factor_[t], 1, d_k[t]);
    }
  }

 private:
  ref::DeltaNetShape s_;
  TrackedRows q_, k_, v_, d_o_, g_, beta_;

 public:
  TrackedRows out, d_q, d_k, d_v, d_g, d_beta;

 private:
  TrackedRows z_, u_;
  std::vector<TrackedRows> states_;
  std::vector<Tracked> q_factor_, k_factor_;

  // y = x f; f = scale / sqrt(sum x^2 + eps): the sum's error halves, then root, quotient, scale.
  static Tracked normalise(const double* x, double scale, std::vector<Tracked>& y) {
    double squares = ref::kDeltaNormEps;
    for (size_t d = 0; d < y.size(); ++d) squares += x[d] * x[d];
    const double factor = scale / std::sqrt(squares);
    const double error = factor * (0.5 * static_cast<double>(y.size() + 2) + 4) * kUnit;
    for (size_t d = 0; d < y.size(); ++d) y[d] = Tracked{x[d], 0} * Tracked{factor, error};
    return {factor, error};
  }
  // d_x = f (d_y - m y (y . d_y))
  static void through_norm(const std::vector<Tracked>& y, Tracked factor, double m,
                           std::vector<Tracked>& d) {
    Tracked dot;
    for (size_t i = 0; i < y.size(); ++i) dot = fma(y[i], d[i], dot);
    const Tracked slope = -(Tracked{m, 0} * dot);
    for (size_t i = 0; i < y.size(); ++i) d[i] = factor * fma(slope, y[i], d[i]);
  }
  static Tracked dot(const std::vector<Tracked>& a, const std::vector<Tracked>& b) {
    Tracked sum;
    for (size_t i = 0; i < a.size(); ++i) sum = fma(a[i], b[i], sum);
    return sum;
  }
  static void add(Tracked factor, const std::vector<Tracked>& x, std::vector<Tracked>& y) {
    for (size_t i = 0; i < x.size(); ++i) y[i] = fma(factor, x[i], y[i]);
  }
  // Of rows j + 1 .. i of the chunk at `begin`; j = -1: from its start.
  [[nodiscard]] Tracked gamma(int64_t begin, int64_t i, int64_t j) const {
    Tracked sum;
    for (int64_t l = j + 1; l <= i; ++l) sum = sum + g_[static_cast<size_t>(begin + l)][0];
    return exp(sum);
  }
  [[nodiscard]] int64_t count(int64_t begin) const {
    return std::min(kDeltaChunk, s_.num_tokens - begin);
  }

  void forward(int64_t begin) {
    const TrackedRows state = states_.back();
    const auto b = static_cast<size_t>(begin);
    const int64_t n = count(begin);
    for (int64_t i = 0; i < n; ++i) {
      const size_t at = b + static_cast<size_t>(i);
      const Tracked e = gamma(begin, i, -1);
      std::vector<Tracked> k_read(v_[at].size());
      std::vector<Tracked> q_read(v_[at].size());
      for (size_t d = 0; d < k_[at].size(); ++d) {
        add(k_[at][d], state[d], k_read);
        add(q_[at][d], state[d], q_read);
      }
      z_[at] = v_[at];
      add(-e, k_read, z_[at]);
      add(e, q_read, out[at]);
      for (int64_t j = 0; j < i; ++j) {
        const size_t from = b + static_cast<size_t>(j);
        const Tracked decayed = gamma(begin, i, j);
        add(-(decayed * dot(k_[at], k_[from])), u_[from], z_[at]);
        add(decayed * dot(q_[at], k_[from]), u_[from], out[at]);
      }
      add(beta_[at][0], z_[at], u_[at]);
      add(dot(q_[at], k_[at]), u_[at], out[at]);
    }
    TrackedRows after = tracked(s_.key_dim, s_.value_dim);
    for (size_t d = 0; d < after.size(); ++d) {
      add(gamma(begin, n - 1, -1), state[d], after[d]);
      for (int64_t j = 0; j < n; ++j) {
        const size_t from = b + static_cast<size_t>(j);
        add(k_[from][d] * gamma(begin, n - 1, j), u_[from], after[d]);
      }
    }
    states_.push_back(after);
  }

  void backward(int64_t chunk, TrackedRows& d_state) {
    const int64_t begin = chunk * kDeltaChunk;
    const int64_t n = count(begin);
    const auto b = static_cast<size_t>(begin);
    const TrackedRows& state = states_[static_cast<size_t>(chunk)];
    const auto size = static_cast<size_t>(n);
    TrackedRows d_decay = tracked(n + 1, n + 1);  // of D_{i,j-1}; row n: of the state behind
    TrackedRows d_before = tracked(s_.key_dim, s_.value_dim);
    TrackedRows d_u = tracked(n, s_.value_dim);
    const Tracked last = gamma(begin, n - 1, -1);
    for (size_t d = 0; d < state.size(); ++d) {
      d_decay[size][0] = d_decay[size][0] + last * dot(d_state[d], state[d]);
      add(last, d_state[d], d_before[d]);
    }
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = b + static_cast<size_t>(j);
      const auto row = static_cast<size_t>(j);
      const Tracked fold = gamma(begin, n - 1, j);
      std::vector<Tracked> read(v_[at].size());
      for (size_t d = 0; d < state.size(); ++d) {
        add(k_[at][d], d_state[d], read);
        d_k[at][d] = fma(fold, dot(d_state[d], u_[at]), d_k[at][d]);
      }
      d_decay[size][row + 1] = fold * dot(read, u_[at]);
      add(fold, read, d_u[row]);
    }
    for (int64_t i = n - 1; i >= 0; --i) row_backward(begin, i, state, d_before, d_u, d_decay);
    for (size_t l = 0; l < size; ++l) {
      for (size_t i = l; i <= size; ++i) {
        for (size_t j = 0; j <= l; ++j) d_g[b + l][0] = d_g[b + l][0] + d_decay[i][j];
      }
    }
    d_state = d_before;
  }

  void row_backward(int64_t begin, int64_t i, const TrackedRows& state, TrackedRows& d_before,
                    TrackedRows& d_u, TrackedRows& d_decay) {
    const auto b = static_cast<size_t>(begin);
    const auto row = static_cast<size_t>(i);
    const size_t at = b + row;
    for (int64_t j = 0; j <= i; ++j) {
      const size_t from = b + static_cast<size_t>(j);
      const Tracked factor = gamma(begin, i, j);
      // out_i = ... + P_ij u_j
      const Tracked d_p = factor * dot(d_o_[at], u_[from]);
      add(factor * dot(q_[at], k_[from]), d_o_[at], d_u[static_cast<size_t>(j)]);
      add(d_p, k_[from], d_q[at]);
      add(d_p, q_[at], d_k[from]);
      if (j < i) d_decay[row][static_cast<size_t>(j) + 1] = d_p * dot(q_[at], k_[from]);
    }
    const Tracked e = gamma(begin, i, -1);
    d_beta[at][0] = dot(d_u[row], z_[at]);
    add(beta_[at][0], d_u[row], d_v[at]);
    for (int64_t j = 0; j < i; ++j) {
      const size_t from = b + static_cast<size_t>(j);
      const Tracked factor = gamma(begin, i, j);
      // z_i = v_i - ... - M_ij u_j
      const Tracked d_m = -(factor * dot(d_v[at], u_[from]));
      const Tracked score = dot(k_[at], k_[from]);
      add(-(factor * score), d_v[at], d_u[static_cast<size_t>(j)]);
      add(d_m, k_[from], d_k[at]);
      add(d_m, k_[at], d_k[from]);
      Tracked& d = d_decay[row][static_cast<size_t>(j) + 1];
      d = fma(d_m, score, d);
    }
    for (size_t d = 0; d < state.size(); ++d) {
      const Tracked d_q_read = e * dot(d_o_[at], state[d]);
      const Tracked d_k_read = -(e * dot(d_v[at], state[d]));
      d_q[at][d] = d_q[at][d] + d_q_read;
      d_k[at][d] = d_k[at][d] + d_k_read;
      d_decay[row][0] = fma(q_[at][d], d_q_read, fma(k_[at][d], d_k_read, d_decay[row][0]));
      add(e * q_[at][d], d_o_[at], d_before[d]);
      add(-(e * k_[at][d]), d_v[at], d_before[d]);
    }
  }
};

// A row's map of the state, e^g (1 - beta k k^T), makes no error larger, nor does its transpose, so
// that the errors of chunks add: one chain's bound each, then the last rounding. In the L2 sense,
// and of each element beside the largest.
inline double chunks_bound(const DeltaCase& c, DType type) {
  const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const auto chunks = static_cast<double>((longest + kDeltaChunk - 1) / kDeltaChunk);
  return chunks * dot_tolerance(kDeltaChunk + c.shape.key_dim, DType::kF32) +
         (type == DType::kF32 ? 0 : unit_roundoff(type));
}

// What the oracle says and how far a result may be from it: each an array like the tensor it is of.
struct DeltaExpected {
  std::vector<double> want;
  std::vector<double> bound;
  std::vector<double> chunked;  // the chunk form in double
};
struct ExpectedDelta {
  DeltaExpected out, d_qkv, d_log_decay, d_beta;
};

inline void put(const std::vector<Tracked>& from, size_t at, DeltaExpected& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to.chunked[at + i] += from[i].value;
    // The last term: value heads of one key head are added.
    to.bound[at + i] += from[i].error + kUnit * std::abs(from[i].value);
  }
}

// Bounds of results in `result` (out: in the data's type), the fp32 bound plus the last rounding.
inline ExpectedDelta expected_delta(const DeltaCase& c, const DeltaData& data, DType result) {
  const auto qkv = data.qkv.values();
  const auto g = data.log_decay.values();
  const auto beta = data.beta.values();
  const auto d_out = data.d_out.values();
  const auto sized = [](size_t n) {
    return DeltaExpected{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  };
  ExpectedDelta e{sized(d_out.size()), sized(qkv.size()), sized(g.size()), sized(g.size())};
  int64_t begin = 0;
  for (const int64_t length : c.lengths) {
    const ref::DeltaNetShape s = c.ref_shape(length);
    const auto row = static_cast<size_t>(begin * s.width());
    const auto head_row = static_cast<size_t>(begin * s.num_value_heads);
    const size_t out_row = head_row * static_cast<size_t>(s.value_dim);
    begin += length;
    if (length == 0) continue;
    ref::delta_net(s, &qkv[row], &g[head_row], &beta[head_row], &e.out.want[out_row]);
    ref::delta_net_backward(s, &qkv[row], &g[head_row], &beta[head_row], &d_out[out_row],
                            &e.d_qkv.want[row], &e.d_log_decay.want[head_row],
                            &e.d_beta.want[head_row]);
    for (int64_t h = 0; h < s.num_value_heads; ++h) {
      const TrackedDelta head(s, h, &qkv[row], &g[head_row], &beta[head_row], &d_out[out_row]);
      for (int64_t t = 0; t < length; ++t) {
        const auto at = static_cast<size_t>(t);
        const size_t of_head = head_row + static_cast<size_t>(s.head(t, h));
        put(head.out[at], of_head * static_cast<size_t>(s.value_dim), e.out);
        put(head.d_q[at], row + static_cast<size_t>(s.q(t, h)), e.d_qkv);
        put(head.d_k[at], row + static_cast<size_t>(s.k(t, h)), e.d_qkv);
        put(head.d_v[at], row + static_cast<size_t>(s.v(t, h)), e.d_qkv);
        put(head.d_g[at], of_head, e.d_log_decay);
        put(head.d_beta[at], of_head, e.d_beta);
      }
    }
  }
  const auto round = [](DType type, DeltaExpected& x) {
    if (type == DType::kF32) return;
    for (size_t i = 0; i < x.want.size(); ++i) {
      x.bound[i] += unit_roundoff(type) * (std::abs(x.want[i]) + x.bound[i]);
    }
  };
  round(data.qkv.view().dtype, e.out);
  round(result, e.d_qkv);
  return e;
}

}  // namespace strata::ops::testing
