// SPDX-License-Identifier: Apache-2.0
// How attention lays rows out for its products, as templates over an element type K, which
// attention_kernels_impl.h describes; see cpu/simd.h for what may be called here.
#pragma once
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/simd.h"

namespace strata::ops::cpu {

template <typename K>
void pack_row(const void* row, int64_t dim, uint32_t* dst) {
  const auto* x = static_cast<const typename K::Element*>(row);
  for (int64_t h = 0; h < dim; h += kLanes * K::kPack) {
    K::V::store(reinterpret_cast<float*>(dst), K::load_words(x + h, dim - h), Whole{});
    dst += kLanes;
  }
}

// Sixteen rows by sixteen words, transposed, from element `at` of the rows; num_rows, num_elements
// and num_words say how many of them exist.
template <typename K, bool kWhole>
[[gnu::always_inline]] inline void pack_transposed(const void* const* rows, int64_t num_rows,
                                                   int64_t at, int64_t num_elements,
                                                   int64_t num_words, float* dst) {
  using V = typename K::V;
  using X = typename K::Element;
  typename V::F t[kLanes];
#pragma GCC unroll 16
  for (int64_t j = 0; j < kLanes; ++j) {
    if constexpr (kWhole) {
      t[j] = K::load_words(static_cast<const X*>(rows[j]) + at, kLanes * K::kPack);
    } else {
      t[j] = V::set1(0.0f);
      if (j < num_rows) t[j] = K::load_words(static_cast<const X*>(rows[j]) + at, num_elements);
    }
  }
  K::transpose(t);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) {
    // A square is a whole group of steps.
    if (kWhole || K::kStepMultiple == kLanes || i < num_words) {
      V::store(dst + i * kKeyBlock, t[i], Whole{});
    }
  }
}

template <typename K>
void pack_in_lanes_form(const PackRows& from, uint32_t* dst) {
  constexpr int64_t kChunk = kLanes * K::kPack;  // elements of a square's row
  const int64_t dim = from.dim;
  const int64_t steps = (dim + K::kPack - 1) / K::kPack;
  for (int64_t group = 0; group < kKeyBlock; group += kLanes) {
    for (int64_t head = 0; head < from.num_heads; ++head) {
      for (int64_t h = 0; h < dim; h += kChunk) {
        const int64_t d = h / K::kPack;
        float* to = reinterpret_cast<float*>(dst) + head * from.head_words + d * kKeyBlock + group;
        if (group + kLanes <= from.count && h + kChunk <= dim) {
          pack_transposed<K, true>(from.rows + group, kLanes, head * dim + h, kChunk, kLanes, to);
        } else {
          pack_transposed<K, false>(from.rows + group, from.count - group, head * dim + h, dim - h,
                                    steps - d, to);
        }
      }
    }
  }
}

// Elements `at`, ... of one or two rows as words of depth form.
template <typename K, bool kWhole>
[[gnu::always_inline]] inline void pack_step(const void* const* rows, int64_t num_rows, int64_t at,
                                             int64_t num_elements, float* dst) {
  using V = typename K::V;
  using X = typename K::Element;
  const int64_t left = kWhole ? kLanes * K::kPack : num_elements;
  const auto first = K::load_words(static_cast<const X*>(rows[0]) + at, left);
  if constexpr (K::kPack == 1) {
    V::store(dst, first, Whole{});
  } else {
    auto second = V::set1(0.0f);
    if (kWhole || num_rows > 1) second = K::load_words(static_cast<const X*>(rows[1]) + at, left);
    typename V::F low;
    typename V::F high;
    K::interleave(first, second, low, high);
    V::store(dst, low, Whole{});
    if (kWhole || num_elements > kLanes) V::store(dst + kLanes, high, Whole{});
  }
}

// Rows group, group + 1, ... of one square as steps of depth form, sixteen of them where kWhole.
template <typename K, bool kWhole>
[[gnu::always_inline]] inline void pack_steps(const void* const* rows, int64_t num_rows, int64_t at,
                                              int64_t num_elements, int64_t lanes, float* dst) {
  if constexpr (kWhole) {
    // Unrolled, so that each row's loads have an address stride of their own to be followed.
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; i += K::kPack) {
      pack_step<K, true>(rows + i, K::kPack, at, num_elements, dst + i / K::kPack * lanes);
    }
  } else {
    for (int64_t i = 0; i < kLanes && i < num_rows; i += K::kPack) {
      pack_step<K, false>(rows + i, num_rows - i, at, num_elements, dst + i / K::kPack * lanes);
    }
  }
}

// Steps from that of row `count` on, up to whole groups, become zero.
template <typename K>
void zero_rest_of_group(const PackRows& from, int64_t lanes, uint32_t* dst) {
  using V = typename K::V;
  const int64_t steps = (from.count + K::kPack - 1) / K::kPack;
  const int64_t end = (steps + K::kStepMultiple - 1) / K::kStepMultiple * K::kStepMultiple;
  for (int64_t head = 0; head < from.num_heads; ++head) {
    float* to = reinterpret_cast<float*>(dst) + head * from.head_words;
    for (int64_t i = steps * lanes; i < end * lanes; i += kLanes) {
      V::store(to + i, V::set1(0.0f), Whole{});
    }
  }
}

template <typename K>
void pack_in_depth_form(const PackRows& from, uint32_t* dst) {
  constexpr int64_t kChunk = kLanes * K::kPack;
  const int64_t dim = from.dim;
  const int64_t lanes = (dim + kLanes - 1) / kLanes * kLanes;
  for (int64_t group = 0; group < from.count; group += kLanes) {
    for (int64_t head = 0; head < from.num_heads; ++head) {
      for (int64_t h = 0; h < dim; h += kChunk) {
        const void* const* rows = from.rows + group;
        const int64_t at = head * dim + h;
        float* to =
            reinterpret_cast<float*>(dst) + head * from.head_words + group / K::kPack * lanes + h;
        if (group + kLanes <= from.count && h + kChunk <= dim) {
          pack_steps<K, true>(rows, kLanes, at, kChunk, lanes, to);
        } else {
          pack_steps<K, false>(rows, from.count - group, at, dim - h, lanes, to);
        }
      }
    }
  }
  if constexpr (K::kStepMultiple > 1) zero_rest_of_group<K>(from, lanes, dst);
}

}  // namespace strata::ops::cpu
