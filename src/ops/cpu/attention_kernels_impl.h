// SPDX-License-Identifier: Apache-2.0
// Attention kernels as templates over a path and element type K; see cpu/simd.h for what may be
// called here. K provides V (the lanes), Element, kPack, load_words, transpose, interleave, and two
// stores of rounded probabilities: store_rounded_row (one row, in rows form) and store_rounded_step
// (a step of depth form). How it multiplies is one of two: a K that is OneChain has kTileVectors
// (16-lane accumulators of a row in registers) and dot (one step of a chain); a K that is InGroups
// has add_groups (a product in groups) and dot_lanes.
#pragma once
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pack_impl.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/soft_cap_impl.h"

namespace strata::ops::cpu {

enum class Start { kZero, kScaled, kContinue };

// Products whose sums are one chain.
struct OneChain {
  static constexpr bool kInGroups = false;
  static constexpr int64_t kTileRows = cpu::kTileRows;
  static constexpr int64_t kForwardRows = cpu::kForwardRows;
  static constexpr int64_t kQueryTile = cpu::kQueryTile;
  static constexpr int64_t kKeyBlocks = 1;
  static constexpr int64_t kStepMultiple = 1;
};

// Products whose sums are groups of kGroupSteps pairs, by FMA; by tiles the three sizes differ.
struct InGroups {
  static constexpr bool kInGroups = true;
  static constexpr int64_t kTileRows = cpu::kTileRows;
  static constexpr int64_t kForwardRows = cpu::kForwardRows;
  static constexpr int64_t kQueryTile = cpu::kQueryTile;
  static constexpr int64_t kKeyBlocks = 1;
  static constexpr int64_t kStepMultiple = 1;
};

template <typename K>
[[gnu::always_inline]] inline typename K::V::F word_lanes(const uint32_t* p) {
  return K::V::load(reinterpret_cast<const float*>(p), Whole{});
}

// 2^x for x <= 1, relative error 1.3e-7, 2^0 exactly 1, exactly 0 below -150, NaN for NaN.
// x = n + f with |f| <= 1/2; 2^f by a minimax polynomial of degree 5 whose constant is 1.
template <typename V, typename F>
[[gnu::always_inline]] inline F exp2_at_most_one(F x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = V::max(V::set1(-160.0f), x);
  const F n = (x + V::set1(kRound)) - V::set1(kRound);
  const F f = x - n;
  F p = V::fma(V::set1(0x1.5bba14p-10f), f, V::set1(0x1.3cea88p-7f));
  p = V::fma(p, f, V::set1(0x1.c6b752p-5f));
  p = V::fma(p, f, V::set1(0x1.ebf9bcp-3f));
  p = V::fma(p, f, V::set1(0x1.62e42ap-1f));
  p = V::fma(p, f, V::set1(1.0f));
  return V::scale_by_power(p, n);
}

template <typename V>
alignas(64) constexpr float kLaneIndex[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};

// Lanes 16 j, 16 j + 1, ... that are `visible` or above become `fill`.
template <typename V, typename F>
[[gnu::always_inline]] inline F mask_after_visible(F x, int64_t j, int64_t visible, float fill) {
  const F beyond =
      V::load(kLaneIndex<V>, Whole{}) - V::set1(static_cast<float>(visible - kLanes * j));
  return V::select_negative(beyond, x, V::set1(fill));
}

// Lanes 16 j, 16 j + 1, ... that are below `hidden` become `fill`.
template <typename V, typename F>
[[gnu::always_inline]] inline F mask_before_window(F x, int64_t j, int64_t hidden, float fill) {
  const F below =
      V::load(kLaneIndex<V>, Whole{}) - V::set1(static_cast<float>(hidden - kLanes * j));
  return V::select_negative(below, V::set1(fill), x);
}

// R rows by NV vectors of lanes, in registers for all steps.
template <typename K, int R, int NV, Start kStart>
void multiply_rows(const ProductTile& t, int64_t lane, const float* row_scale) {
  using V = typename K::V;
  using F = typename V::F;
  F acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      if constexpr (kStart == Start::kZero) {
        acc[r][j] = V::set1(0.0f);
      } else {
        acc[r][j] = V::load(t.acc + r * t.acc_stride + lane + kLanes * j, Whole{});
        if constexpr (kStart == Start::kScaled) acc[r][j] = acc[r][j] * V::set1(row_scale[r]);
      }
    }
  }
  const uint32_t* panel = t.panel + lane;
  const uint32_t* x = t.x;
  for (int64_t d = 0; d < t.steps; ++d) {
    F w[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) w[j] = word_lanes<K>(panel + kLanes * j);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F word = V::set1(reinterpret_cast<const float*>(x)[r * t.x_row]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) acc[r][j] = K::dot(acc[r][j], w[j], word);
    }
    panel += t.panel_width;
    x += t.x_step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      V::store(t.acc + r * t.acc_stride + lane + kLanes * j, acc[r][j], Whole{});
    }
  }
}

// All rows of the tile by NV vectors of lanes.
template <typename K, int NV, Start kStart>
void multiply_lane_strip(const ProductTile& t, int64_t lane, const float* row_scale) {
  switch (t.rows) {
    case 1:
      return multiply_rows<K, 1, NV, kStart>(t, lane, row_scale);
    case 2:
      return multiply_rows<K, 2, NV, kStart>(t, lane, row_scale);
    case 3:
      return multiply_rows<K, 3, NV, kStart>(t, lane, row_scale);
    case 4:
      return multiply_rows<K, 4, NV, kStart>(t, lane, row_scale);
    case 5:
      return multiply_rows<K, 5, NV, kStart>(t, lane, row_scale);
    default:
      return multiply_rows<K, 6, NV, kStart>(t, lane, row_scale);
  }
}

template <typename K, Start kStart>
void multiply_tile_in_chains(const ProductTile& t, const float* row_scale) {
  constexpr int64_t kStep = kLanes * K::kTileVectors;
  int64_t lane = 0;
  for (; lane + kStep <= t.lanes; lane += kStep) {
    multiply_lane_strip<K, K::kTileVectors, kStart>(t, lane, row_scale);
  }
  if constexpr (K::kTileVectors == 4) {
    switch ((t.lanes - lane) / kLanes) {
      case 3:
        return multiply_lane_strip<K, 3, kStart>(t, lane, row_scale);
      case 2:
        return multiply_lane_strip<K, 2, kStart>(t, lane, row_scale);
      case 1:
        return multiply_lane_strip<K, 1, kStart>(t, lane, row_scale);
      default:
        return;
    }
  }
}

// acc[r] *= row_scale[r]; a factor of one, the most frequent, moves no bit.
template <typename K>
void rescale_rows(const ProductTile& t, const float* row_scale) {
  using V = typename K::V;
  for (int64_t r = 0; r < t.rows; ++r) {
    if (row_scale[r] == 1.0f) continue;
    const auto scale = V::set1(row_scale[r]);
    float* acc = t.acc + r * t.acc_stride;
    for (int64_t lane = 0; lane < t.lanes; lane += kLanes) {
      V::store(acc + lane, V::load(acc + lane, Whole{}) * scale, Whole{});
    }
  }
}

template <typename K, Start kStart>
void multiply_tile(const ProductTile& t, const float* row_scale) {
  if constexpr (K::kInGroups) {
    if constexpr (kStart == Start::kScaled) rescale_rows<K>(t, row_scale);
    K::add_groups(t, kStart == Start::kZero);
  } else {
    multiply_tile_in_chains<K, kStart>(t, row_scale);
  }
}

template <typename K>
void accumulate_product(const ProductTile& tile) {
  multiply_tile<K, Start::kContinue>(tile, nullptr);
}

// The keys of the block up to the last that one of the rows sees.
template <typename K>
int64_t most_visible(const int64_t* visible, int64_t rows) {
  int64_t most = 0;
  for (int64_t r = 0; r < rows; ++r) most = visible[r] > most ? visible[r] : most;
  return most < kKeyBlock ? most : kKeyBlock;
}

constexpr int64_t kBlockVectors = kKeyBlock / kLanes;

// scores [rows][kKeyBlock] = x panel; vectors past the last visible key stay unset.
template <typename K>
void multiply_by_key_panel(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t steps,
                           int64_t rows, int64_t vectors, float* scores) {
  multiply_tile<K, Start::kZero>({.x = x,
                                  .x_row = stride,
                                  .x_step = 1,
                                  .panel = panel,
                                  .panel_width = kKeyBlock,
                                  .steps = steps,
                                  .rows = rows,
                                  .lanes = vectors * kLanes,
                                  .acc = scores,
                                  .acc_stride = kKeyBlock},
                                 nullptr);
}

// Which lanes of a block a row does not see: none, those past its own key, or also those before
// its window.
enum class Mask { kNone, kEnd, kBoth };

struct Seen {
  int64_t hidden;
  int64_t visible;
};

// Calls body.operator()<mask>(seen) for row r of a tile.
template <typename K, typename Body>
[[gnu::always_inline]] inline void with_mask(const int64_t* visible, const int64_t* hidden,
                                             int64_t r, Body&& body) {
  if (hidden != nullptr && hidden[r] > 0) {
    body.template operator()<Mask::kBoth>(Seen{hidden[r], visible[r]});
  } else if (visible[r] < kKeyBlock) {
    body.template operator()<Mask::kEnd>(Seen{0, visible[r]});
  } else {
    body.template operator()<Mask::kNone>(Seen{0, kKeyBlock});
  }
}

// Lanes of vector j that the row does not see become `fill`.
template <typename V, Mask kMask, typename F>
[[gnu::always_inline]] inline F mask_unseen(F x, int64_t j, Seen seen, float fill) {
  if constexpr (kMask == Mask::kBoth) x = mask_before_window<V>(x, j, seen.hidden, fill);
  if constexpr (kMask != Mask::kNone) x = mask_after_visible<V>(x, j, seen.visible, fill);
  return x;
}

// Vector j of a row's scores, scaled; lanes the row does not see become `fill`.
template <typename K, Mask kMask>
[[gnu::always_inline]] inline typename K::V::F masked_scores(const float* scores, int64_t j,
                                                             float scale, Seen seen, float fill) {
  using V = typename K::V;
  const auto s = V::load(scores + kLanes * j, Whole{}) * V::set1(scale);
  return mask_unseen<V, kMask>(s, j, seen, fill);
}

// 2^(s - offset) of vector j, zero for lanes that the row does not see. Their exponent is zero: a
// power that underflows costs some processors a hundred cycles.
template <typename K, Mask kMask>
[[gnu::always_inline]] inline typename K::V::F masked_powers(const float* scores, int64_t j,
                                                             float scale, Seen seen, float offset) {
  using V = typename K::V;
  const auto s = masked_scores<K, kMask>(scores, j, scale, seen, offset);
  return mask_unseen<V, kMask>(exp2_at_most_one<V>(s - V::set1(offset)), j, seen, 0.0f);
}

// max(old, the row's scores). A NaN score is passed over here and found again by the sum.
template <typename K, Mask kMask>
[[gnu::always_inline]] inline float running_row_max(const float* scores, float scale, Seen seen,
                                                    float old) {
  using V = typename K::V;
  auto max = V::set1(old);
#pragma GCC unroll 4
  for (int64_t j = 0; j < kBlockVectors; ++j) {
    const auto s = masked_scores<K, kMask>(scores, j, scale, seen, -__builtin_inff());
    max = V::max(s, max);
  }
  return V::max_lane(max);
}

// p = 2^(s - max) as words, and the row's running sum, which has 16 lanes until the end.
template <typename K, Mask kMask>
[[gnu::always_inline]] inline void online_softmax_row(const float* scores, float scale, Seen seen,
                                                      float row_max, float alpha, float* sum,
                                                      uint32_t* words) {
  using V = typename K::V;
  typename V::F p[kBlockVectors];
#pragma GCC unroll 4
  for (int64_t j = 0; j < kBlockVectors; ++j) {
    p[j] = masked_powers<K, kMask>(scores, j, scale, seen, row_max);
  }
  const auto block = (p[0] + p[1]) + (p[2] + p[3]);
  V::store(sum, V::fma(V::load(sum, Whole{}), V::set1(alpha), block), Whole{});
  K::store_rounded_row(words, p);
}

template <typename K>
[[gnu::always_inline]] inline void score_rows(const ForwardTile& t, float* scores) {
  for (int64_t r = 0; r < t.rows; r += K::kTileRows) {
    const int64_t rows = t.rows - r < K::kTileRows ? t.rows - r : K::kTileRows;
    const int64_t seen = most_visible<K>(t.visible + r, rows);
    const int64_t vectors = (seen + kLanes - 1) / kLanes;
    float* to = scores + r * kKeyBlock;
    multiply_by_key_panel<K>(t.q + r * t.q_stride, t.q_stride, t.keys, t.steps, rows, vectors, to);
    if (t.tanh_scale != 0.0f) take_tanh<K>(t.tanh_scale, rows, vectors, kKeyBlock, to);
  }
}

// Brings the rows' maxima up to the block; alpha = 2^(old - new), which the sums so far are times.
// A maximum starts as the lowest finite number, so no difference is ever inf - inf.
template <typename K>
[[gnu::always_inline]] inline void update_max_and_alpha(const ForwardTile& t, const float* scores,
                                                        float* alpha) {
  using V = typename K::V;
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* row = scores + r * kKeyBlock;
    with_mask<K>(t.visible, t.hidden, r, [&]<Mask kMask>(Seen seen) {
      const float new_max = running_row_max<K, kMask>(row, t.scale, seen, t.max[r]);
      alpha[r] = t.max[r] - new_max;
      t.max[r] = new_max;
    });
  }
  for (int64_t r = 0; r < t.rows; r += kLanes) {
    V::store(alpha + r, exp2_at_most_one<V>(V::load(alpha + r, Whole{})), Whole{});
  }
}

// acc = alpha acc + P V.
template <typename K>
[[gnu::always_inline]] inline void accumulate_values(const ForwardTile& t, const uint32_t* p_words,
                                                     const float* alpha) {
  constexpr int64_t kRowWords = kKeyBlock / K::kPack;
  for (int64_t r = 0; r < t.rows; r += K::kTileRows) {
    const int64_t rows = t.rows - r < K::kTileRows ? t.rows - r : K::kTileRows;
    const int64_t seen = most_visible<K>(t.visible + r, rows);
    multiply_tile<K, Start::kScaled>({.x = p_words + r * kRowWords,
                                      .x_row = kRowWords,
                                      .x_step = 1,
                                      .panel = t.values,
                                      .panel_width = t.lanes,
                                      .steps = (seen + K::kPack - 1) / K::kPack,
                                      .rows = rows,
                                      .lanes = t.lanes,
                                      .acc = t.acc + r * t.lanes,
                                      .acc_stride = t.lanes},
                                     alpha + r);
  }
}

template <typename K>
void forward_tile(const ForwardTile& t) {
  alignas(64) float scores[K::kForwardRows * kKeyBlock];
  alignas(64) uint32_t p_words[K::kForwardRows * kKeyBlock / K::kPack];
  alignas(64) float alpha[K::kForwardRows + kLanes];
  constexpr int64_t kRowWords = kKeyBlock / K::kPack;
  score_rows<K>(t, scores);
  update_max_and_alpha<K>(t, scores, alpha);
  for (int64_t r = 0; r < t.rows; ++r) {
    with_mask<K>(t.visible, t.hidden, r, [&]<Mask kMask>(Seen seen) {
      online_softmax_row<K, kMask>(scores + r * kKeyBlock, t.scale, seen, t.max[r], alpha[r],
                                   t.sum + r * kLanes, p_words + r * kRowWords);
    });
  }
  accumulate_values<K>(t, p_words, alpha);
}

// p = 2^(s - lse) and d_s = p (d_p - delta) of one row, times the slope where scores are capped:
// s = scale tanh(tanh_scale q k), of which `scores` has the tanh.
template <typename K, Mask kMask, bool kCapped, typename F>
[[gnu::always_inline]] inline void softmax_backward_row(const BackwardTile& t, int64_t r, Seen seen,
                                                        const float* scores, const float* d_p,
                                                        F (&p)[kBlockVectors],
                                                        F (&d_s)[kBlockVectors]) {
  using V = typename K::V;
#pragma GCC unroll 4
  for (int64_t j = 0; j < kBlockVectors; ++j) {
    F d = V::load(d_p + r * kKeyBlock + kLanes * j, Whole{}) - V::set1(t.delta[r]);
    d = mask_unseen<V, kMask>(d, j, seen, 0.0f);
    p[j] = masked_powers<K, kMask>(scores + r * kKeyBlock, j, t.scale, seen, t.lse[r]);
    d_s[j] = p[j] * d;
    if constexpr (kCapped) {
      const F y = V::load(scores + r * kKeyBlock + kLanes * j, Whole{});
      d_s[j] = d_s[j] * mask_unseen<V, kMask>(soft_cap_slope<V>(y, V::set1(1.0f)), j, seen, 0.0f);
    }
  }
}

// p and d_s of the K::kPack rows from r on, zero for those that do not exist; with pairs d_s goes
// to its rows form, too.
template <typename K, bool kCapped, typename F>
[[gnu::always_inline]] inline void softmax_backward_rows(const BackwardTile& t, int64_t r,
                                                         const float* scores, const float* d_p,
                                                         F (&p)[K::kPack][kBlockVectors],
                                                         F (&d_s)[K::kPack][kBlockVectors]) {
#pragma GCC unroll 2
  for (int64_t i = 0; i < K::kPack; ++i) {
    if (r + i < t.rows) {
      with_mask<K>(t.visible, t.hidden, r + i, [&]<Mask kMask>(Seen seen) {
        softmax_backward_row<K, kMask, kCapped>(t, r + i, seen, scores, d_p, p[i], d_s[i]);
      });
      if constexpr (K::kPack > 1) {
        K::store_rounded_row(t.d_s_rows + (r + i) * (kKeyBlock / K::kPack), d_s[i]);
      }
    } else {
      for (int64_t j = 0; j < kBlockVectors; ++j) p[i][j] = d_s[i][j] = K::V::set1(0.0f);
    }
  }
}

template <typename K, bool kCapped>
[[gnu::always_inline]] inline void softmax_backward(const BackwardTile& t, const float* scores,
                                                    const float* d_p) {
  using F = typename K::V::F;
  for (int64_t r = 0; r < t.rows; r += K::kPack) {
    F p[K::kPack][kBlockVectors];
    F d_s[K::kPack][kBlockVectors];
    softmax_backward_rows<K, kCapped>(t, r, scores, d_p, p, d_s);
    K::store_rounded_step(t.p + r / K::kPack * kKeyBlock, p);
    K::store_rounded_step(t.d_s + r / K::kPack * kKeyBlock, d_s);
  }
}

// Apart from the tile without a cap, whose registers it would take.
template <typename K>
[[gnu::noinline]] void capped_softmax_backward(const BackwardTile& t, int64_t vectors,
                                               float* scores, const float* d_p) {
  take_tanh<K>(t.tanh_scale, t.rows, vectors, kKeyBlock, scores);
  softmax_backward<K, true>(t, scores, d_p);
}

template <typename K>
void backward_tile(const BackwardTile& t) {
  alignas(64) float scores[K::kTileRows * kKeyBlock];
  alignas(64) float d_p[K::kTileRows * kKeyBlock];
  const int64_t vectors = (most_visible<K>(t.visible, t.rows) + kLanes - 1) / kLanes;
  multiply_by_key_panel<K>(t.q, t.q_stride, t.keys, t.key_steps, t.rows, vectors, scores);
  multiply_by_key_panel<K>(t.d_out, t.d_out_stride, t.values, t.value_steps, t.rows, vectors, d_p);
  if (t.tanh_scale != 0.0f) return capped_softmax_backward<K>(t, vectors, scores, d_p);
  softmax_backward<K, false>(t, scores, d_p);
}

template <typename K>
float sum_row(const float* lanes) {
  return K::V::sum(K::V::load(lanes, Whole{}));
}

template <typename K>
void write_row(const float* acc, float scale, int64_t dim, void* dst, bool is_bf16) {
  using V = typename K::V;
  with_type<V>(is_bf16 ? DType::kBF16 : DType::kF32, [&]<typename Y>() {
    for_chunks<V>(dim, [&](int64_t i, auto part) {
      const auto value = V::load(acc + i, part) * V::set1(scale) + V::set1(0.0f);
      V::store(static_cast<Y*>(dst) + i, value, part);
    });
  });
}

template <typename K>
void dot_lanes(const uint32_t* a, const uint32_t* b, int64_t steps, float* out) {
  using V [[maybe_unused]] = typename K::V;
  if constexpr (K::kInGroups) {
    K::dot_lanes(a, b, steps, out);
  } else {
    for (int64_t j = 0; j < kBlockVectors; ++j) {
      auto sum = V::set1(0.0f);
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t at = step * kKeyBlock + kLanes * j;
        sum = K::dot(sum, word_lanes<K>(a + at), word_lanes<K>(b + at));
      }
      V::store(out + kLanes * j, sum, Whole{});
    }
  }
}

template <typename K>
constexpr AttentionKernels attention_kernels() {
  static_assert(K::kQueryTile % K::kTileRows == 0 && K::kQueryTile % (2 * kGroupSteps) == 0);
  return {.pack = K::kPack,
          .tile_rows = K::kTileRows,
          .forward_rows = K::kForwardRows,
          .query_tile = K::kQueryTile,
          .key_blocks = K::kKeyBlocks,
          .step_multiple = K::kStepMultiple,
          .pack_row = pack_row<K>,
          .pack_in_lanes_form = pack_in_lanes_form<K>,
          .pack_in_depth_form = pack_in_depth_form<K>,
          .forward_tile = forward_tile<K>,
          .backward_tile = backward_tile<K>,
          .accumulate_product = accumulate_product<K>,
          .sum_row = sum_row<K>,
          .write_row = write_row<K>,
          .dot_lanes = dot_lanes<K>};
}

}  // namespace strata::ops::cpu
