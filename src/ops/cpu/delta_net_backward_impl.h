// SPDX-License-Identifier: Apache-2.0
// What only the backward of the gated delta rule needs of a path; see delta_net_forward_impl.h.
#pragma once
#include "ops/cpu/delta_net_forward_impl.h"

namespace strata::ops::cpu {

// Sixty-four interleaved partial sums, their sixteen sums in pairs, then those lanes' tree.
template <typename V>
[[gnu::always_inline]] inline float delta_dot(const float* a, const float* b, int64_t lanes) {
  constexpr int kSums = 4;
  typename V::F sums[kSums];
#pragma GCC unroll 4
  for (int s = 0; s < kSums; ++s) sums[s] = V::set1(0.0f);
  int64_t i = 0;
  for (; i + kSums * kLanes <= lanes; i += kSums * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      const int64_t at = i + s * kLanes;
      sums[s] = V::fma(V::load(a + at, Whole{}), V::load(b + at, Whole{}), sums[s]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < kSums - 1; ++s) {
    const int64_t at = i + s * kLanes;
    if (at >= lanes) break;
    sums[s] = V::fma(V::load(a + at, Whole{}), V::load(b + at, Whole{}), sums[s]);
  }
  return V::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <typename K>
void delta_dot_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t n,
                    int64_t lanes, bool add, float* sums, int64_t sum_stride) {
  for (int64_t r = 0; r < n; ++r) {
    const float dot = delta_dot<typename K::V>(a + r * a_stride, b + r * b_stride, lanes);
    float& sum = sums[r * sum_stride];
    sum = add ? sum + dot : dot;
  }
}

template <typename K>
void delta_transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns,
                     float* to, int64_t to_stride) {
  using V = typename K::V;
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      typename V::F t[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        t[j] = V::set1(0.0f);
        if (r + j < rows) t[j] = V::load(from + (r + j) * from_stride + c, Whole{});
      }
      K::transpose(t);
      for (int64_t j = 0; j < kLanes; ++j) V::store(to + (c + j) * to_stride + r, t[j], Whole{});
    }
  }
}

template <typename K>
void delta_add_into(const float* x, float* sum, int64_t n) {
  using V = typename K::V;
  for (int64_t i = 0; i < n; i += kLanes) {
    V::store(sum + i, V::load(sum + i, Whole{}) + V::load(x + i, Whole{}), Whole{});
  }
}

// Rows row .. row + R - 1: what stands behind the tile first, then the triangle within it, the last
// row first.
template <typename K, int R, int C>
void solve_back_tile(const DeltaSolveBack& s, int64_t row, int64_t lane) {
  using V = typename K::V;
  using F = typename V::F;
  F acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      acc[r][c] = V::load(s.d_u + (row + r) * s.lanes + lane + kLanes * c, Whole{});
    }
  }
  for (int64_t i = row + R; i < s.count; ++i) {
    const float* z = s.d_z + 2 * i * s.lanes + lane;
    F w[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) w[c] = V::load(z + kLanes * c, Whole{});
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F factor = V::set1(s.coefficients[2 * i * kDeltaChunk + row + r]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::fnma(factor, w[c], acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int back = 0; back < R; ++back) {
    const int t = R - 1 - back;
    const F beta = V::set1(0.0f - s.beta[(row + t) * s.beta_stride]);
    F solved[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const int64_t at = lane + kLanes * c;
      solved[c] = beta * acc[t][c];
      V::store(s.d_u + (row + t) * s.lanes + at, acc[t][c], Whole{});
      V::store(s.d_z + 2 * (row + t) * s.lanes + at, solved[c], Whole{});
    }
#pragma GCC unroll 8
    for (int r = 0; r < t; ++r) {
      const F factor = V::set1(s.coefficients[2 * (row + t) * kDeltaChunk + row + r]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::fnma(factor, solved[c], acc[r][c]);
    }
  }
}

template <typename K>
void delta_solve_back(const DeltaSolveBack& s) {
  for_lane_tiles<K>(s.lanes, [&]<int C>(int64_t lane) {
    int64_t row = s.count;
    for (; row >= 6; row -= 6) solve_back_tile<K, 6, C>(s, row - 6, lane);
    for (; row >= 2; row -= 2) solve_back_tile<K, 2, C>(s, row - 2, lane);
    if (row == 1) solve_back_tile<K, 1, C>(s, 0, lane);
  });
}

// coefficient = e^D score: scores and D of one row, D's in place of the even row's gradients.
template <typename K>
void decay_backward_row(const DeltaDecayBackward& d, int64_t i) {
  using V = typename K::V;
  const float* gamma = d.gamma + i * kDeltaChunk;
  const float* scores = d.scores + 2 * i * kDeltaChunk;
  float* from = d.d_coefficients + 2 * i * kDeltaChunk;
  float* d_k_to = d.d_scores + 2 * i * kDeltaChunk;
  float* d_q_to = d_k_to + kDeltaChunk;
  float* d_decay = d.d_decay + i * kDeltaChunk;
  from[i] = 0.0f;
  const auto zero = V::set1(0.0f);
  for_chunks<V>(i + 1, [&](int64_t j, auto part) {
    const auto factor = V::load(gamma + j, part);
    const auto d_k = V::load(from + j, part) * factor;
    const auto d_q = V::load(from + kDeltaChunk + j, part) * factor;
    const auto k = V::load(scores + j, part);
    V::store(d_decay + j, V::fma(V::load(scores + kDeltaChunk + j, part), d_q, k * d_k), Whole{});
    V::store(d_k_to + j, d.is_first ? d_k : V::load(d_k_to + j, Whole{}) + d_k, Whole{});
    V::store(d_q_to + j, d.is_first ? d_q : V::load(d_q_to + j, Whole{}) + d_q, Whole{});
  });
  d_decay[i] = 0.0f;
  for (int64_t j = (i / kLanes + 1) * kLanes; d.is_first && j < kDeltaChunk; j += kLanes) {
    V::store(d_k_to + j, zero, Whole{});
    V::store(d_q_to + j, zero, Whole{});
  }
}

// What follows the chunk gives: d_fold, or zeros.
template <typename V>
[[gnu::always_inline]] inline void start_column_sums(const DeltaDecayBackward& d) {
  for (int64_t j = 0; j < kDeltaChunk; j += kLanes) {
    const auto sum = d.d_fold == nullptr ? V::set1(0.0f) : V::load(d.d_fold + j, Whole{});
    V::store(d.column_sums + j, sum, Whole{});
  }
}

// column_sums += d D_lj, as far as row l sees.
template <typename V>
[[gnu::always_inline]] inline void add_row_to_column_sums(const DeltaDecayBackward& d, int64_t l) {
  for (int64_t j = 0; j <= l; j += kLanes) {
    const auto more = V::load(d.d_decay + l * kDeltaChunk + j, Whole{});
    V::store(d.column_sums + j, V::load(d.column_sums + j, Whole{}) + more, Whole{});
  }
}

// g_l is a term of D_ij for j < l <= i, of G_i for i >= l, and, where a chunk follows, of all D_63j
// with j < l and of G_63. From the last row back, column_sums[j] holds sum_{i>=l} d D_ij.
template <typename K>
void delta_decay_backward(const DeltaDecayBackward& d) {
  using V = typename K::V;
  for (int64_t i = 0; i < d.count; ++i) decay_backward_row<K>(d, i);
  start_column_sums<V>(d);
  float total = d.d_fold == nullptr ? 0.0f : d.d_fold_total;
  for (int64_t l = d.count - 1; l >= 0; --l) {
    add_row_to_column_sums<V>(d, l);
    total = total + d.d_total[l];
    auto sum = V::set1(0.0f);
    for_chunks<V>(l, [&](int64_t j, auto part) { sum = sum + V::load(d.column_sums + j, part); });
    d.d_log_decay[l * d.stride] = V::sum(sum) + total;
  }
}

template <typename V, typename X>
[[gnu::always_inline]] inline void norm_backward_row(const float* y, const float* d_y, float factor,
                                                     float inverse, int64_t lanes, int64_t dim,
                                                     X* d_x) {
  const auto slope = V::set1(inverse * delta_dot<V>(y, d_y, lanes));
  const auto scale = V::set1(factor);
  for_chunks<V>(dim, [&](int64_t i, auto part) {
    const auto centred = V::fnma(slope, V::load(y + i, Whole{}), V::load(d_y + i, Whole{}));
    V::store(d_x + i, scale * centred, part);
  });
}

template <typename K>
void delta_norm_backward(const DeltaNormBackward& n) {
  using V = typename K::V;
  with_type<V>(n.type, [&]<typename X>() {
    for (int64_t i = 0; i < n.count; ++i) {
      const int64_t at = 2 * i * n.lanes;
      norm_backward_row<V>(n.y + at, n.d_y + at, n.factors[2 * i], 1.0f, n.lanes, n.dim,
                           static_cast<X*>(n.d_k) + i * n.stride);
      norm_backward_row<V>(n.y + at + n.lanes, n.d_y + at + n.lanes, n.factors[2 * i + 1],
                           n.q_inverse, n.lanes, n.dim, static_cast<X*>(n.d_q) + i * n.stride);
    }
  });
}

}  // namespace strata::ops::cpu
