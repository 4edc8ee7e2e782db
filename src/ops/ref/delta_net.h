// SPDX-License-Identifier: Apache-2.0
// The oracle of the gated delta rule: the recurrence of ops/delta_net.h row by row, no chunks, on
// dense row-major arrays of one sequence from position 0, templated on the scalar (double, or
// std::complex<double> for derivatives by complex step). T rows, Kh key heads, Vh value heads, dk
// and dv their widths. Source: HF modeling_qwen3_5.py, torch_recurrent_gated_delta_rule and l2norm.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace strata::ops::ref {

struct DeltaNetShape {
  int64_t num_tokens = 0;
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;

  [[nodiscard]] int64_t width() const {
    return 2 * num_key_heads * key_dim + num_value_heads * value_dim;
  }
  [[nodiscard]] int64_t key_head(int64_t h) const { return h / (num_value_heads / num_key_heads); }
  // Where value head h has its part in row t of qkv.
  [[nodiscard]] int64_t q(int64_t t, int64_t h) const {
    return t * width() + key_head(h) * key_dim;
  }
  [[nodiscard]] int64_t k(int64_t t, int64_t h) const { return q(t, h) + num_key_heads * key_dim; }
  [[nodiscard]] int64_t v(int64_t t, int64_t h) const {
    return t * width() + 2 * num_key_heads * key_dim + h * value_dim;
  }
  [[nodiscard]] int64_t head(int64_t t, int64_t h) const { return t * num_value_heads + h; }
};

constexpr double kDeltaNormEps = 1e-6;

// x / sqrt(sum x^2 + eps), dim elements.
template <typename S>
std::vector<S> l2_normalised(const S* x, int64_t dim) {
  S squares(0);
  for (int64_t d = 0; d < dim; ++d) squares += x[d] * x[d];
  const S inverse = S(1) / std::sqrt(squares + kDeltaNormEps);
  std::vector<S> y(x, x + dim);
  for (S& value : y) value *= inverse;
  return y;
}

// Adds to d_x: y = x / |x|, d |x| / d x = y.
template <typename S>
void l2_normalised_backward(const S* x, int64_t dim, const std::vector<S>& d_y, S* d_x) {
  S squares(0);
  for (int64_t d = 0; d < dim; ++d) squares += x[d] * x[d];
  const S norm = std::sqrt(squares + kDeltaNormEps);
  S dot(0);
  for (int64_t d = 0; d < dim; ++d) dot += d_y[static_cast<size_t>(d)] * x[d];
  for (int64_t d = 0; d < dim; ++d) {
    d_x[d] += d_y[static_cast<size_t>(d)] / norm - dot * x[d] / (norm * norm * norm);
  }
}

// What a row of a value head makes: the state behind it [dk, dv] from the one before, and u.
template <typename S>
struct DeltaNetRow {
  std::vector<S> q, k;     // normalised, q scaled
  std::vector<S> decayed;  // e^g times the state before
  std::vector<S> error;    // v - k^T decayed
  std::vector<S> state;
};

template <typename S>
DeltaNetRow<S> delta_net_row(const DeltaNetShape& shape, const S* qkv, const S* log_decay,
                             const S* beta, int64_t t, int64_t h, const std::vector<S>& before) {
  const int64_t dk = shape.key_dim;
  const int64_t dv = shape.value_dim;
  DeltaNetRow<S> row{l2_normalised(qkv + shape.q(t, h), dk),
                     l2_normalised(qkv + shape.k(t, h), dk),
                     before,
                     std::vector<S>(static_cast<size_t>(dv)),
                     {}};
  for (S& value : row.q) value *= 1 / std::sqrt(static_cast<double>(dk));
  for (S& value : row.decayed) value *= std::exp(log_decay[shape.head(t, h)]);
  row.state = row.decayed;
  for (int64_t e = 0; e < dv; ++e) {
    S& error = row.error[static_cast<size_t>(e)];
    error = qkv[shape.v(t, h) + e];
    for (int64_t d = 0; d < dk; ++d) {
      error -= row.k[static_cast<size_t>(d)] * row.decayed[static_cast<size_t>(d * dv + e)];
    }
    for (int64_t d = 0; d < dk; ++d) {
      row.state[static_cast<size_t>(d * dv + e)] +=
          row.k[static_cast<size_t>(d)] * beta[shape.head(t, h)] * error;
    }
  }
  return row;
}

// out [T, Vh, dv].
template <typename S>
void delta_net(const DeltaNetShape& shape, const S* qkv, const S* log_decay, const S* beta,
               S* out) {
  const int64_t dv = shape.value_dim;
  for (int64_t h = 0; h < shape.num_value_heads; ++h) {
    std::vector<S> state(static_cast<size_t>(shape.key_dim * dv), S(0));
    for (int64_t t = 0; t < shape.num_tokens; ++t) {
      DeltaNetRow<S> row = delta_net_row(shape, qkv, log_decay, beta, t, h, state);
      state.swap(row.state);
      for (int64_t e = 0; e < dv; ++e) {
        S sum(0);
        for (int64_t d = 0; d < shape.key_dim; ++d) {
          sum += row.q[static_cast<size_t>(d)] * state[static_cast<size_t>(d * dv + e)];
        }
        out[shape.head(t, h) * dv + e] = sum;
      }
    }
  }
}

// One row back: d_state goes from the gradient of the state behind the row to that before it.
template <typename S>
void delta_net_row_backward(const DeltaNetShape& shape, const DeltaNetRow<S>& row, const S* qkv,
                            const S* log_decay, const S* beta, const S* d_out, int64_t t, int64_t h,
                            std::vector<S>& d_state, S* d_qkv, S* d_log_decay, S* d_beta) {
  const int64_t dk = shape.key_dim;
  const int64_t dv = shape.value_dim;
  const int64_t at = shape.head(t, h);
  std::vector<S> d_q(static_cast<size_t>(dk), S(0));
  std::vector<S> d_k(static_cast<size_t>(dk), S(0));
  d_log_decay[at] = S(0);
  d_beta[at] = S(0);
  for (int64_t e = 0; e < dv; ++e) {
    const S error = row.error[static_cast<size_t>(e)];
    S d_u(0);
    for (int64_t d = 0; d < dk; ++d) {
      const auto i = static_cast<size_t>(d);
      const auto s = static_cast<size_t>(d * dv + e);
      // o = S^T q
      d_q[i] += row.state[s] * d_out[at * dv + e];
      d_state[s] += row.q[i] * d_out[at * dv + e];
      // S = decayed + k u^T
      d_u += d_state[s] * row.k[i];
      d_k[i] += d_state[s] * beta[at] * error;
    }
    // u = beta (v - decayed^T k)
    d_beta[at] += d_u * error;
    const S d_error = d_u * beta[at];
    d_qkv[shape.v(t, h) + e] = d_error;
    for (int64_t d = 0; d < dk; ++d) {
      const auto s = static_cast<size_t>(d * dv + e);
      d_k[static_cast<size_t>(d)] -= row.decayed[s] * d_error;
      d_state[s] -= row.k[static_cast<size_t>(d)] * d_error;
      // decayed = e^g S
      d_log_decay[at] += d_state[s] * row.decayed[s];
      d_state[s] *= std::exp(log_decay[at]);
    }
  }
  for (S& value : d_q) value *= 1 / std::sqrt(static_cast<double>(dk));
  l2_normalised_backward(qkv + shape.q(t, h), dk, d_q, d_qkv + shape.q(t, h));
  l2_normalised_backward(qkv + shape.k(t, h), dk, d_k, d_qkv + shape.k(t, h));
}

// Writes d_qkv [T, width], d_log_decay and d_beta [T, Vh] from d_out [T, Vh, dv].
template <typename S>
void delta_net_backward(const DeltaNetShape& shape, const S* qkv, const S* log_decay, const S* beta,
                        const S* d_out, S* d_qkv, S* d_log_decay, S* d_beta) {
  for (int64_t i = 0; i < shape.num_tokens * shape.width(); ++i) d_qkv[i] = S(0);
  const std::vector<S> zero(static_cast<size_t>(shape.key_dim * shape.value_dim), S(0));
  for (int64_t h = 0; h < shape.num_value_heads; ++h) {
    std::vector<std::vector<S>> states{zero};
    for (int64_t t = 0; t < shape.num_tokens; ++t) {
      states.push_back(delta_net_row(shape, qkv, log_decay, beta, t, h, states.back()).state);
    }
    std::vector<S> d_state = zero;
    for (int64_t t = shape.num_tokens - 1; t >= 0; --t) {
      const DeltaNetRow<S> row =
          delta_net_row(shape, qkv, log_decay, beta, t, h, states[static_cast<size_t>(t)]);
      delta_net_row_backward(shape, row, qkv, log_decay, beta, d_out, t, h, d_state, d_qkv,
                             d_log_decay, d_beta);
    }
  }
}

}  // namespace strata::ops::ref
