// Attention kernels as templates over a path and element type K; see cpu/simd.h for what may be
// called here. K provides V (the lanes), Element, kPack, kTileVectors (16-lane accumulators of a
// row in registers), dot (one step of a chain), load_words, transpose, pack_pair, and the two
// stores of probabilities.
#pragma once
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

enum class Start { kZero, kScaled, kContinue };

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

// Lanes 16 j, 16 j + 1, ... that are `visible` or above become `other`.
template <typename V, typename F>
[[gnu::always_inline]] inline F keep_visible(F x, int64_t j, int64_t visible, float other) {
  alignas(64) static constexpr float kIndex[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                       8, 9, 10, 11, 12, 13, 14, 15};
  const F beyond = V::load(kIndex, Whole{}) - V::set1(static_cast<float>(visible - kLanes * j));
  return V::select_negative(beyond, x, V::set1(other));
}

// R rows by NV vectors of lanes, in registers for all steps.
template <typename K, int R, int NV, Start kStart>
void chain(const ProductTile& t, int64_t lane, const float* row_scale) {
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

template <typename K, int NV, Start kStart>
void chain_rows(const ProductTile& t, int64_t lane, const float* row_scale) {
  switch (t.rows) {
    case 1:
      return chain<K, 1, NV, kStart>(t, lane, row_scale);
    case 2:
      return chain<K, 2, NV, kStart>(t, lane, row_scale);
    case 3:
      return chain<K, 3, NV, kStart>(t, lane, row_scale);
    case 4:
      return chain<K, 4, NV, kStart>(t, lane, row_scale);
    case 5:
      return chain<K, 5, NV, kStart>(t, lane, row_scale);
    default:
      return chain<K, 6, NV, kStart>(t, lane, row_scale);
  }
}

template <typename K, Start kStart>
void product_tile(const ProductTile& t, const float* row_scale) {
  constexpr int64_t kStep = kLanes * K::kTileVectors;
  int64_t lane = 0;
  for (; lane + kStep <= t.lanes; lane += kStep) {
    chain_rows<K, K::kTileVectors, kStart>(t, lane, row_scale);
  }
  if constexpr (K::kTileVectors == 4) {
    switch ((t.lanes - lane) / kLanes) {
      case 3:
        return chain_rows<K, 3, kStart>(t, lane, row_scale);
      case 2:
        return chain_rows<K, 2, kStart>(t, lane, row_scale);
      case 1:
        return chain_rows<K, 1, kStart>(t, lane, row_scale);
      default:
        return;
    }
  }
}

template <typename K>
void product(const ProductTile& tile) {
  product_tile<K, Start::kContinue>(tile, nullptr);
}

template <typename K>
int64_t most_visible(const int64_t* visible, int64_t rows) {
  int64_t most = 0;
  for (int64_t r = 0; r < rows; ++r) most = visible[r] > most ? visible[r] : most;
  return most < kKeyBlock ? most : kKeyBlock;
}

constexpr int64_t kBlockVectors = kKeyBlock / kLanes;

// Scores of a tile in `scores` [rows][kKeyBlock]; vectors past the last visible key stay unset.
template <typename K>
void score_tile(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t steps,
                int64_t rows, int64_t vectors, float* scores) {
  product_tile<K, Start::kZero>({.x = x,
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

// Scales and masks scores in place; new_max[r] = max(max[r], row).
template <typename K>
void scale_scores(const ForwardTile& t, int64_t vectors, bool masked, float* scores,
                  float* new_max) {
  using V = typename K::V;
  using F = typename V::F;
  const F scale = V::set1(t.scale);
  for (int64_t r = 0; r < t.rows; ++r) {
    F max = V::set1(t.max[r]);
    for (int64_t j = 0; j < vectors; ++j) {
      float* at = scores + r * kKeyBlock + kLanes * j;
      F s = V::load(at, Whole{}) * scale;
      if (masked) s = keep_visible<V>(s, j, t.visible[r], -__builtin_inff());
      V::store(at, s, Whole{});
      max = V::max(s, max);  // a NaN score is passed over here and found again by the sum
    }
    new_max[r] = V::max_lane(max);
  }
}

template <typename K>
void forward_tile(const ForwardTile& t) {
  using V = typename K::V;
  using F = typename V::F;
  alignas(64) float scores[kTileRows * kKeyBlock];
  alignas(64) uint32_t p_words[kTileRows * kKeyBlock / K::kPack];
  alignas(64) float old_max[kLanes] = {};
  alignas(64) float new_max[kLanes] = {};
  alignas(64) float alpha[kLanes];
  const int64_t seen = most_visible<K>(t.visible, t.rows);
  const int64_t vectors = (seen + kLanes - 1) / kLanes;
  score_tile<K>(t.q, t.q_stride, t.keys, t.steps, t.rows, vectors, scores);
  bool masked = false;
  for (int64_t r = 0; r < t.rows; ++r) {
    masked = masked || t.visible[r] < kKeyBlock;
    old_max[r] = t.max[r];
  }
  scale_scores<K>(t, vectors, masked, scores, new_max);
  // The maximum starts as the lowest finite number, so no difference is ever inf - inf.
  const F decay = V::load(old_max, Whole{}) - V::load(new_max, Whole{});
  V::store(alpha, exp2_at_most_one<V>(decay), Whole{});
  for (int64_t r = 0; r < t.rows; ++r) {
    const F max = V::set1(new_max[r]);
    F p[kBlockVectors];
#pragma GCC unroll 4
    for (int64_t j = 0; j < kBlockVectors; ++j) {
      p[j] = V::set1(0.0f);
      if (j < vectors) {
        p[j] = exp2_at_most_one<V>(V::load(scores + r * kKeyBlock + kLanes * j, Whole{}) - max);
      }
    }
    t.max[r] = new_max[r];
    t.sum[r] = t.sum[r] * alpha[r] + V::sum((p[0] + p[1]) + (p[2] + p[3]));
    K::store_rows(p_words + r * (kKeyBlock / K::kPack), p);
  }
  product_tile<K, Start::kScaled>({.x = p_words,
                                   .x_row = kKeyBlock / K::kPack,
                                   .x_step = 1,
                                   .panel = t.values,
                                   .panel_width = t.lanes,
                                   .steps = (seen + K::kPack - 1) / K::kPack,
                                   .rows = t.rows,
                                   .lanes = t.lanes,
                                   .acc = t.acc,
                                   .acc_stride = t.lanes},
                                  alpha);
}

// p = 2^(s - lse) and d_s = p (d_p - delta) of one row.
template <typename K, typename F>
[[gnu::always_inline]] inline void backward_row(const BackwardTile& t, int64_t r, int64_t vectors,
                                                const float* scores, const float* d_p,
                                                F (&p)[kBlockVectors], F (&d_s)[kBlockVectors]) {
  using V = typename K::V;
  const F scale = V::set1(t.scale);
  const F lse = V::set1(t.lse[r]);
  const F delta = V::set1(t.delta[r]);
#pragma GCC unroll 4
  for (int64_t j = 0; j < kBlockVectors; ++j) {
    p[j] = d_s[j] = V::set1(0.0f);
    if (j >= vectors) continue;
    const int64_t at = r * kKeyBlock + kLanes * j;
    F s = V::load(scores + at, Whole{}) * scale;
    F d = V::load(d_p + at, Whole{}) - delta;
    if (t.visible[r] < kKeyBlock) {
      s = keep_visible<V>(s, j, t.visible[r], -__builtin_inff());
      d = keep_visible<V>(d, j, t.visible[r], 0.0f);
    }
    p[j] = exp2_at_most_one<V>(s - lse);
    d_s[j] = p[j] * d;
  }
}

template <typename K>
void backward_tile(const BackwardTile& t) {
  using V = typename K::V;
  using F = typename V::F;
  alignas(64) float scores[kTileRows * kKeyBlock];
  alignas(64) float d_p[kTileRows * kKeyBlock];
  const int64_t vectors = (most_visible<K>(t.visible, t.rows) + kLanes - 1) / kLanes;
  score_tile<K>(t.q, t.stride, t.keys, t.steps, t.rows, vectors, scores);
  score_tile<K>(t.d_out, t.stride, t.values, t.steps, t.rows, vectors, d_p);
  for (int64_t r = 0; r < t.rows; r += K::kPack) {
    F p[K::kPack][kBlockVectors];
    F d_s[K::kPack][kBlockVectors];
#pragma GCC unroll 2
    for (int64_t i = 0; i < K::kPack; ++i) {
      if (r + i < t.rows) {
        backward_row<K>(t, r + i, vectors, scores, d_p, p[i], d_s[i]);
        if constexpr (K::kPack > 1) {
          K::store_rows(t.d_s_rows + (r + i) * (kKeyBlock / K::kPack), d_s[i]);
        }
      } else {
        for (int64_t j = 0; j < kBlockVectors; ++j) p[i][j] = d_s[i][j] = V::set1(0.0f);
      }
    }
    K::store_depth(t.p + r / K::kPack * kKeyBlock, p);
    K::store_depth(t.d_s + r / K::kPack * kKeyBlock, d_s);
  }
}

template <typename K>
void copy_row(const void* row, int64_t dim, uint32_t* dst) {
  const auto* x = static_cast<const typename K::Element*>(row);
  for (int64_t h = 0; h < dim; h += kLanes * K::kPack) {
    K::V::store(reinterpret_cast<float*>(dst), K::load_words(x + h, dim - h), Whole{});
    dst += kLanes;
  }
}

template <typename K>
void pack_lanes(const void* const* rows, int64_t count, int64_t dim, const void* const* next,
                uint32_t* dst) {
  using V = typename K::V;
  using F = typename V::F;
  using X = typename K::Element;
  const int64_t steps = (dim + K::kPack - 1) / K::kPack;
  for (int64_t group = 0; group < kKeyBlock; group += kLanes) {
    for (int64_t d = 0; d < steps; d += kLanes) {
      const int64_t h = d * K::kPack;
      F t[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        t[j] = V::set1(0.0f);
        if (group + j >= count) continue;
        t[j] = K::load_words(static_cast<const X*>(rows[group + j]) + h, dim - h);
        if (next != nullptr) __builtin_prefetch(static_cast<const X*>(next[group + j]) + h);
      }
      K::transpose(t);
      for (int64_t i = 0; i < kLanes && d + i < steps; ++i) {
        V::store(reinterpret_cast<float*>(dst + (d + i) * kKeyBlock + group), t[i], Whole{});
      }
    }
  }
}

template <typename K>
void pack_depth(const void* const* rows, int64_t count, int64_t dim, const void* const* next,
                uint32_t* dst) {
  using V = typename K::V;
  using F = typename V::F;
  using X = typename K::Element;
  const int64_t lanes = (dim + kLanes - 1) / kLanes * kLanes;
  for (int64_t row = 0; row < count; row += K::kPack) {
    auto* to = reinterpret_cast<float*>(dst + row / K::kPack * lanes);
    for (int64_t h = 0; h < dim; h += kLanes * K::kPack) {
      const F first = K::load_words(static_cast<const X*>(rows[row]) + h, dim - h);
      if (next != nullptr) __builtin_prefetch(static_cast<const X*>(next[row]) + h);
      if constexpr (K::kPack == 1) {
        V::store(to + h, first, Whole{});
      } else {
        F second = V::set1(0.0f);
        if (row + 1 < count) {
          second = K::load_words(static_cast<const X*>(rows[row + 1]) + h, dim - h);
          if (next != nullptr) __builtin_prefetch(static_cast<const X*>(next[row + 1]) + h);
        }
        F low;
        F high;
        K::pack_pair(first, second, low, high);
        V::store(to + h, low, Whole{});
        if (h + kLanes < lanes) V::store(to + h + kLanes, high, Whole{});
      }
    }
  }
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
float dot_row(const void* a, const void* b, int64_t dim) {
  using V = typename K::V;
  using X = typename K::Element;
  auto sum = V::set1(0.0f);
  for_chunks<V>(dim, [&](int64_t i, auto part) {
    sum = V::fma(V::load(static_cast<const X*>(a) + i, part),
                 V::load(static_cast<const X*>(b) + i, part), sum);
  });
  return V::sum(sum);
}

template <typename K>
constexpr AttentionKernels attention_kernels() {
  return {.pack = K::kPack,
          .copy_row = copy_row<K>,
          .pack_lanes = pack_lanes<K>,
          .pack_depth = pack_depth<K>,
          .forward_tile = forward_tile<K>,
          .backward_tile = backward_tile<K>,
          .product = product<K>,
          .write_row = write_row<K>,
          .dot_row = dot_row<K>};
}

}  // namespace strata::ops::cpu
