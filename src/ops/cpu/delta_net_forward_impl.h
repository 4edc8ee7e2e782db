// SPDX-License-Identifier: Apache-2.0
// Kernels of the gated delta rule as templates over a path K; see cpu/simd.h for what may be called
// here. K provides V (the lanes), kTileVectors (16-lane accumulators of a row in registers) and
// transpose (t[i] lane j becomes t[j] lane i). The backward's own are in
// delta_net_backward_impl.h.
#pragma once
#include "ops/cpu/delta_net_kernels.h"
#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

constexpr float kDeltaNormEps = 1e-6f;

// Runs body.operator()<C>(lane) over `lanes` in tiles of C vectors.
template <typename K, typename Body>
[[gnu::always_inline]] inline void for_lane_tiles(int64_t lanes, Body&& body) {
  constexpr int64_t kStep = kLanes * K::kTileVectors;
  int64_t lane = 0;
  for (; lane + kStep <= lanes; lane += kStep) body.template operator()<K::kTileVectors>(lane);
  if constexpr (K::kTileVectors == 4) {
    switch ((lanes - lane) / kLanes) {
      case 3:
        return body.template operator()<3>(lane);
      case 2:
        return body.template operator()<2>(lane);
      case 1:
        return body.template operator()<1>(lane);
      default:
        return;
    }
  }
}

// R rows by C vectors of lanes, in registers for all steps.
template <typename K, int R, int C>
void delta_multiply_rows(const DeltaProduct& p, int64_t row, int64_t lane) {
  using V = typename K::V;
  using F = typename V::F;
  F acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      acc[r][c] = V::set1(0.0f);
      if (p.init != nullptr) {
        const float* init = p.init + (row + r) * p.init_stride + lane + kLanes * c;
        acc[r][c] = V::load(init, Whole{}) * V::set1(p.keep);
      }
    }
  }
  const float* x = p.x + row * p.x_row;
  const float* panel = p.panel + lane;
  for (int64_t d = 0; d < p.depth; ++d) {
    F w[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) w[c] = V::load(panel + kLanes * c, Whole{});
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F factor = V::set1(x[r * p.x_row]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::fma(factor, w[c], acc[r][c]);
    }
    panel += p.panel_stride;
    x += p.x_step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      V::store(p.out + (row + r) * p.out_stride + lane + kLanes * c, acc[r][c], Whole{});
    }
  }
}

template <typename K>
void delta_multiply(const DeltaProduct& p) {
  for_lane_tiles<K>(p.lanes, [&]<int C>(int64_t lane) {
    int64_t row = 0;
    for (; row + 6 <= p.rows; row += 6) delta_multiply_rows<K, 6, C>(p, row, lane);
    if (row + 4 <= p.rows) {
      delta_multiply_rows<K, 4, C>(p, row, lane);
      row += 4;
    }
    if (row + 2 <= p.rows) {
      delta_multiply_rows<K, 2, C>(p, row, lane);
      row += 2;
    }
    if (row < p.rows) delta_multiply_rows<K, 1, C>(p, row, lane);
  });
}

// Rows of tokens are far apart: no prefetcher follows them. Asks for row i + 8 of `count`.
template <typename V, typename X>
[[gnu::always_inline]] inline void prefetch_ahead(const X* row, int64_t stride, int64_t i,
                                                  int64_t count, int64_t columns) {
  constexpr int64_t kAhead = 8;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(X));
  if (i + kAhead >= count) return;
  for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(row + kAhead * stride + c);
}

template <typename V, typename X>
[[gnu::always_inline]] inline void normalise_row(const X* x, int64_t dim, float scale, float* out,
                                                 float* factor) {
  auto squares = V::set1(0.0f);
  for_chunks<V>(dim, [&](int64_t i, auto part) {
    const auto value = V::load(x + i, part);
    squares = V::fma(value, value, squares);
  });
  *factor = 1.0f / __builtin_sqrtf(V::sum(squares) + kDeltaNormEps) * scale;
  const auto by = V::set1(*factor);
  for_chunks<V>(
      dim, [&](int64_t i, auto part) { V::store(out + i, V::load(x + i, part) * by, Whole{}); });
}

template <typename K>
void delta_normalise(const DeltaNormalise& n) {
  using V = typename K::V;
  with_type<V>(n.k.type, [&]<typename X>() {
    const X* q = static_cast<const X*>(n.q.data);
    const X* k = static_cast<const X*>(n.k.data);
    for (int64_t i = 0; i < n.count; ++i) {
      float* pair = n.out + 2 * i * n.lanes;
      prefetch_ahead<V>(k + i * n.k.stride, n.k.stride, i, n.count, n.dim);
      normalise_row<V>(k + i * n.k.stride, n.dim, 1.0f, pair, n.factors + 2 * i);
      if (q == nullptr) continue;
      prefetch_ahead<V>(q + i * n.q.stride, n.q.stride, i, n.count, n.dim);
      normalise_row<V>(q + i * n.q.stride, n.dim, n.q_scale, pair + n.lanes, n.factors + 2 * i + 1);
    }
  });
}

// Sixteen rows from `row` on become columns from `column` on, in squares of sixteen.
template <typename K>
[[gnu::always_inline]] inline void transpose_sixteen_keys(const float* row, int64_t stride,
                                                          int64_t dim, float* column) {
  using V = typename K::V;
  for (int64_t d = 0; d < dim; d += kLanes) {
    typename V::F t[kLanes];
    for (int j = 0; j < kLanes; ++j) t[j] = V::load(row + j * stride + d, Whole{});
    K::transpose(t);
    for (int64_t j = 0; j < kLanes && d + j < dim; ++j) {
      V::store(column + (d + j) * kDeltaChunk, t[j], Whole{});
    }
  }
}

template <typename K>
void delta_transpose_keys(const float* rows, int64_t stride, int64_t first, int64_t count,
                          int64_t dim, float* keys) {
  for (int64_t i = 0; i < count;) {
    const float* row = rows + i * stride;
    float* column = keys + first + i;
    if ((first + i) % kLanes != 0 || i + kLanes > count) {
      for (int64_t d = 0; d < dim; ++d) column[d * kDeltaChunk] = row[d];
      ++i;
    } else {
      transpose_sixteen_keys<K>(row, stride, dim, column);
      i += kLanes;
    }
  }
}

template <typename K>
void delta_exponentiate(const float* x, float* y, int64_t n) {
  using V = typename K::V;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto bounded = V::min(V::set1(0.0f), V::load(x + i, Whole{}));
    V::store(y + i, exp_below_overflow<V>(bounded), Whole{});
  }
}

template <typename V>
alignas(64) constexpr float kDeltaLane[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};

// Lanes j .. j + 15 of the rows from j on; D stays in a register.
template <typename K>
void compute_decays_and_coefficients_of_lanes(const DeltaDecay& d, int64_t j) {
  using V = typename K::V;
  const auto zero = V::set1(0.0f);
  const auto lane = V::load(kDeltaLane<V>, Whole{});
  auto decay = V::load(d.decay + j, Whole{});
  for (int64_t r = j > d.first ? j - d.first : 0; r < d.count; ++r) {
    const auto step = V::set1(d.log_decay[r * d.stride]);
    // Negative where j < i, and where j <= i.
    const auto below = lane - V::set1(static_cast<float>(d.first + r - j));
    const auto up_to = below - V::set1(1.0f);
    decay = V::select_negative(below, decay + step, zero);
    const auto gamma = exp_below_overflow<V>(V::min(zero, decay));
    const int64_t at = 2 * r * kDeltaChunk + j;
    const auto k = zero - V::load(d.scores + at, Whole{}) * gamma;
    const auto q = V::load(d.scores + at + kDeltaChunk, Whole{}) * gamma;
    V::store(d.coefficients + at, V::select_negative(below, k, zero), Whole{});
    V::store(d.coefficients + at + kDeltaChunk, V::select_negative(up_to, q, zero), Whole{});
    if (d.gamma == nullptr) continue;
    V::store(d.gamma + r * kDeltaChunk + j, V::select_negative(up_to, gamma, zero), Whole{});
  }
  V::store(d.decay + j, decay, Whole{});
}

// Lanes j .. j + 15 of the rows before j.
template <typename V>
[[gnu::always_inline]] inline void zero_lanes_behind_rows(const DeltaDecay& d, int64_t j) {
  const auto zero = V::set1(0.0f);
  for (int64_t r = 0; r < j - d.first && r < d.count; ++r) {
    V::store(d.coefficients + 2 * r * kDeltaChunk + j, zero, Whole{});
    V::store(d.coefficients + (2 * r + 1) * kDeltaChunk + j, zero, Whole{});
    V::store(d.gamma + r * kDeltaChunk + j, zero, Whole{});
  }
}

// Brings the total up to the last row, with e^G_i of each.
template <typename K>
[[gnu::always_inline]] inline void advance_total(const DeltaDecay& d) {
  for (int64_t r = 0; r < d.count; ++r) {
    const float g = d.log_decay[r * d.stride];
    *d.total = d.first + r == 0 ? g : *d.total + g;
    d.total_exp[r] = *d.total;
  }
  delta_exponentiate<K>(d.total_exp, d.total_exp, (d.count + kLanes - 1) / kLanes * kLanes);
}

template <typename K>
void delta_compute_decays_and_coefficients(const DeltaDecay& d) {
  for (int64_t j = 0; j < d.first + d.count; j += kLanes) {
    compute_decays_and_coefficients_of_lanes<K>(d, j);
    if (d.gamma != nullptr) zero_lanes_behind_rows<typename K::V>(d, j);
  }
  advance_total<K>(d);
}

// R tokens by C vectors: what stands before the tile first, then the triangle within it.
template <typename K, int R, int C, bool kOut>
void solve_tile(const DeltaSolve& s, int64_t row, int64_t lane) {
  using V = typename K::V;
  using F = typename V::F;
  constexpr int kPer = kOut ? 2 : 1;  // chains of a token
  const float* coefficients = s.coefficients + 2 * row * kDeltaChunk;
  F acc[kPer * R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const int64_t at = (row + r) * s.lanes + lane + kLanes * c;
      acc[kPer * r][c] = V::load(s.value + at, Whole{});
      if constexpr (kOut) acc[kPer * r + 1][c] = V::set1(0.0f);
      if (s.read == nullptr) continue;
      const F kept = V::set1(s.total_exp[row + r]);
      const float* read = s.read + kPer * (row + r) * s.lanes + lane + kLanes * c;
      acc[kPer * r][c] = V::fnma(kept, V::load(read, Whole{}), acc[kPer * r][c]);
      if constexpr (kOut) acc[kPer * r + 1][c] = kept * V::load(read + s.lanes, Whole{});
    }
  }
  const float* u = s.u + lane;
  for (int64_t j = 0; j < s.first + row; ++j) {
    F w[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) w[c] = V::load(u + kLanes * c, Whole{});
#pragma GCC unroll 8
    for (int r = 0; r < kPer * R; ++r) {
      const F factor = V::set1(coefficients[(kOut ? r : 2 * r) * kDeltaChunk + j]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::fma(factor, w[c], acc[r][c]);
    }
    u += s.lanes;
  }
#pragma GCC unroll 8
  for (int t = 0; t < R; ++t) {
    const F beta = V::set1(s.beta[(row + t) * s.beta_stride]);
    const int64_t j = s.first + row + t;
    F solved[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const int64_t at = lane + kLanes * c;
      solved[c] = beta * acc[kPer * t][c];
      V::store(s.u + j * s.lanes + at, solved[c], Whole{});
      if (s.z != nullptr) V::store(s.z + (row + t) * s.lanes + at, acc[kPer * t][c], Whole{});
    }
#pragma GCC unroll 8
    for (int r = kPer * t + 1; r < kPer * R; ++r) {
      const F factor = V::set1(coefficients[(kOut ? r : 2 * r) * kDeltaChunk + j]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::fma(factor, solved[c], acc[r][c]);
    }
    if constexpr (kOut) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        V::store(s.out + (row + t) * s.lanes + lane + kLanes * c, acc[kPer * t + 1][c], Whole{});
      }
    }
  }
}

template <typename K>
void delta_solve(const DeltaSolve& s) {
  for_lane_tiles<K>(s.lanes, [&]<int C>(int64_t lane) {
    int64_t row = 0;
    if (s.out == nullptr) {
      for (; row + 6 <= s.count; row += 6) solve_tile<K, 6, C, false>(s, row, lane);
      for (; row + 2 <= s.count; row += 2) solve_tile<K, 2, C, false>(s, row, lane);
      if (row < s.count) solve_tile<K, 1, C, false>(s, row, lane);
      return;
    }
    for (; row + 3 <= s.count; row += 3) solve_tile<K, 3, C, true>(s, row, lane);
    for (; row < s.count; ++row) solve_tile<K, 1, C, true>(s, row, lane);
  });
}

template <typename K>
void delta_load_rows(const DeltaMatrix& from, int64_t count, int64_t columns, float* to,
                     int64_t to_stride) {
  using V = typename K::V;
  with_type<V>(from.type, [&]<typename X>() {
    const X* x = static_cast<const X*>(from.data);
    for (int64_t r = 0; r < count; ++r) {
      prefetch_ahead<V>(x + r * from.stride, from.stride, r, count, columns);
      for_chunks<V>(columns, [&](int64_t i, auto part) {
        V::store(to + r * to_stride + i, V::load(x + r * from.stride + i, part), Whole{});
      });
    }
  });
}

template <typename K>
void delta_store_rows(const float* from, int64_t from_stride, int64_t count, int64_t columns,
                      float scale, void* to, DType type, int64_t to_stride) {
  using V = typename K::V;
  with_type<V>(type, [&]<typename X>() {
    const auto factor = V::set1(scale);
    for (int64_t r = 0; r < count; ++r) {
      X* row = static_cast<X*>(to) + r * to_stride;
      for_chunks<V>(columns, [&](int64_t i, auto part) {
        V::store(row + i, factor * V::load(from + r * from_stride + i, Whole{}), part);
      });
    }
  });
}

template <typename K>
void delta_scale_rows(const float* from, int64_t from_stride, const float* factors,
                      int64_t factor_stride, int64_t n, int64_t lanes, float* to,
                      int64_t to_stride) {
  using V = typename K::V;
  for (int64_t r = 0; r < n; ++r) {
    const auto factor = V::set1(factors[r * factor_stride]);
    for (int64_t i = 0; i < lanes; i += kLanes) {
      V::store(to + r * to_stride + i, factor * V::load(from + r * from_stride + i, Whole{}),
               Whole{});
    }
  }
}

}  // namespace strata::ops::cpu
