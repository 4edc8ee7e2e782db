// SPDX-License-Identifier: Apache-2.0
// Products of the path amx by FMA, with the bits that a tile's product has (TDPBF16PS, Intel SDM).
// A group is kGroupSteps steps of a pair of bf16 each, counted from the start of the summed axis.
// Its two chains start at zero, one of the pairs' first values and one of their second, and
// acc = acc + (first + second). Every operation flushes denormals, so all of this runs under
// FlushDenormals, in functions that are not inlined. A group that ends early has one pair of zeros
// behind it: a tile is padded with zeros, of which the first turns minus zero into zero. Templates
// over K as in attention_kernels_impl.h; K has low_halves and high_halves (a word's two values,
// widened), kGroupRows and num_strip_vectors (rows and vectors whose chains share the registers).
#pragma once
#include "ops/cpu/attention_kernels_impl.h"
#include "ops/cpu/mxcsr.h"

namespace strata::ops::cpu {

// A group of the rows of x, widened.
struct GroupRows {
  alignas(64) float low[kTileRows][kGroupSteps];
  alignas(64) float high[kTileRows][kGroupSteps];
};

// Steps step, ... of the rows of x.
template <typename K>
void widen_group(const ProductTile& t, int64_t step, int64_t steps, GroupRows& to) {
  using V = typename K::V;
  for (int64_t r = 0; r < t.rows; ++r) {
    const uint32_t* x = t.x + r * t.x_row + step * t.x_step;
    if (t.x_step == 1) {
      const auto words = word_lanes<K>(x);
      V::store(to.low[r], K::low_halves(words), Whole{});
      V::store(to.high[r], K::high_halves(words), Whole{});
      continue;
    }
    for (int64_t i = 0; i < steps; ++i) {
      to.low[r][i] = __builtin_bit_cast(float, x[i * t.x_step] << 16);
      to.high[r][i] = __builtin_bit_cast(float, x[i * t.x_step] & 0xffff0000u);
    }
  }
}

// One group of R rows by NV vectors of lanes.
template <typename K, int R, int NV>
[[gnu::always_inline]] inline void add_group(const GroupRows& x, int64_t row, const uint32_t* panel,
                                             int64_t panel_width, int64_t steps, bool is_short,
                                             bool from_zero, float* acc, int64_t acc_stride) {
  using V = typename K::V;
  typename V::F low[R][NV];
  typename V::F high[R][NV];
  const auto zero = V::set1(0.0f);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) low[r][j] = high[r][j] = zero;
  }
  for (int64_t d = 0; d < steps; ++d) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      const auto words = word_lanes<K>(panel + d * panel_width + kLanes * j);
      const auto first = K::low_halves(words);
      const auto second = K::high_halves(words);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        low[r][j] = V::fma(V::set1(x.low[row + r][d]), first, low[r][j]);
        high[r][j] = V::fma(V::set1(x.high[row + r][d]), second, high[r][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      float* at = acc + (row + r) * acc_stride + kLanes * j;
      // 0 * 0 added to a chain.
      const auto last =
          is_short ? (low[r][j] + zero) + (high[r][j] + zero) : low[r][j] + high[r][j];
      V::store(at, (from_zero ? zero : V::load(at, Whole{})) + last, Whole{});
    }
  }
}

// One group of a tile's steps.
struct Group {
  int64_t step;
  int64_t steps;
  bool is_short;
  bool from_zero;
};

template <typename K, int R, int NV>
void add_group_to_strips(const ProductTile& t, const GroupRows& x, Group group, int64_t row,
                         int64_t& lane) {
  for (; lane + kLanes * NV <= t.lanes; lane += kLanes * NV) {
    add_group<K, R, NV>(x, row, t.panel + group.step * t.panel_width + lane, t.panel_width,
                        group.steps, group.is_short, group.from_zero, t.acc + lane, t.acc_stride);
  }
}

// Rows row, ..., at most R.
template <typename K, int R>
void add_group_to_rows(const ProductTile& t, const GroupRows& x, Group group, int64_t row) {
  if constexpr (R > 1) {
    if (t.rows - row < R) return add_group_to_rows<K, R - 1>(t, x, group, row);
  }
  constexpr int kVectors = K::num_strip_vectors(R);
  int64_t lane = 0;
  add_group_to_strips<K, R, kVectors>(t, x, group, row, lane);
  if constexpr (kVectors > 2) add_group_to_strips<K, R, 2>(t, x, group, row, lane);
  if constexpr (kVectors > 1) add_group_to_strips<K, R, 1>(t, x, group, row, lane);
}

template <typename K>
[[gnu::noinline]] void add_groups_in_order(const ProductTile& t, bool from_zero) {
  GroupRows x;
  for (int64_t step = 0; step < t.steps || from_zero;) {
    const int64_t place = (t.phase + step) % kGroupSteps;
    const int64_t whole = kGroupSteps - place;
    const int64_t steps = t.steps - step < whole ? t.steps - step : whole;
    const Group group{
        .step = step, .steps = steps, .is_short = steps < whole, .from_zero = from_zero};
    widen_group<K>(t, step, steps, x);
    for (int64_t row = 0; row < t.rows; row += K::kGroupRows) {
      add_group_to_rows<K, K::kGroupRows>(t, x, group, row);
    }
    step += steps;
    from_zero = false;
  }
}

// acc, or zero where from_zero, plus the product.
template <typename K>
void add_groups_by_fma(const ProductTile& t, bool from_zero) {
  const FlushDenormals flush;
  add_groups_in_order<K>(t, from_zero);
}

template <typename K>
[[gnu::noinline]] void dot_lanes_in_groups(const uint32_t* a, const uint32_t* b, int64_t steps,
                                           float* out) {
  using V = typename K::V;
  const auto zero = V::set1(0.0f);
  for (int64_t j = 0; j < kBlockVectors; ++j) {
    auto sum = zero;
    for (int64_t step = 0; step < steps; step += kGroupSteps) {
      auto low = zero;
      auto high = zero;
      const int64_t end = steps - step < kGroupSteps ? steps : step + kGroupSteps;
      for (int64_t i = step; i < end; ++i) {
        const auto x = word_lanes<K>(a + i * kKeyBlock + kLanes * j);
        const auto y = word_lanes<K>(b + i * kKeyBlock + kLanes * j);
        low = V::fma(K::low_halves(x), K::low_halves(y), low);
        high = V::fma(K::high_halves(x), K::high_halves(y), high);
      }
      const bool is_short = end < step + kGroupSteps;
      sum = sum + (is_short ? (low + zero) + (high + zero) : low + high);
    }
    V::store(out + kLanes * j, sum, Whole{});
  }
}

template <typename K>
void dot_lanes_by_fma(const uint32_t* a, const uint32_t* b, int64_t steps, float* out) {
  const FlushDenormals flush;
  dot_lanes_in_groups<K>(a, b, steps, out);
}

}  // namespace strata::ops::cpu
