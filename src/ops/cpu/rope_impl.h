// Head norm and rotary embedding as templates over the path; see cpu/simd.h for what may be called
// here. A row is walked in pairs of chunks, h of the first half and h + H / 2 of the second.
#pragma once
#include "ops/cpu/rms_norm_impl.h"
#include "ops/cpu/rope.h"

namespace strata::ops::cpu {

// Rows whose norms are found together: their chains overlap.
constexpr int64_t kRopeBatch = 8;

// Between pairs (2h, 2h + 1) and (h, h + H / 2).
template <typename V, typename X>
[[gnu::always_inline]] inline void split_pairs(const X* from, int64_t half, X* to) {
  for (int64_t h = 0; h < half; ++h) {
    to[h] = from[2 * h];
    to[half + h] = from[2 * h + 1];
  }
}
template <typename V, typename X>
[[gnu::always_inline]] inline void join_pairs(const X* from, int64_t half, X* to) {
  for (int64_t h = 0; h < half; ++h) {
    to[2 * h] = from[h];
    to[2 * h + 1] = from[half + h];
  }
}

template <typename V, typename X>
[[gnu::always_inline]] inline void head_norm_rope_row(const RopeKernel& k, const X* x, X* y,
                                                      int64_t position, float inv_rms) {
  const int64_t half = k.dim / 2;
  const float* cos = k.cos + position * k.table_stride;
  const float* sin = k.sin + position * k.table_stride;
  const auto inv = V::set1(inv_rms);
  for_chunks<V>(half, [&](int64_t h, auto part) {
    auto first = V::load(x + h, part);
    auto second = V::load(x + half + h, part);
    if (k.weight != nullptr) {
      first = first * inv * V::load(k.weight + h, part);
      second = second * inv * V::load(k.weight + half + h, part);
    }
    const auto c = V::load(cos + h, part);
    const auto s = V::load(sin + h, part);
    V::store(y + h, V::fnma(second, s, first * c), part);
    V::store(y + half + h, V::fma(first, s, second * c), part);
  });
}

template <typename V, typename X>
void head_norm_rope_typed(const RopeKernel& k, X* y, int64_t y_stride, int64_t begin, int64_t end) {
  const X* x = static_cast<const X*>(k.x);
  float inv[kRopeBatch] = {};
  for (int64_t first = begin; first < end; first += kRopeBatch) {
    const int64_t count = end - first < kRopeBatch ? end - first : kRopeBatch;
    for (int64_t i = 0; k.weight != nullptr && i < count; ++i) {
      inv[i] = inv_rms_of<V>(x + (first + i) * k.x_stride, k.dim, k.eps);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = first + i;
      const X* x_row = x + row * k.x_stride;
      X halves[kMaxInterleavedDim];
      if (k.interleaved) {
        split_pairs<V>(x_row, k.dim / 2, halves);
        x_row = halves;
      }
      head_norm_rope_row<V>(k, x_row, y + row * y_stride, k.positions[row / k.num_heads], inv[i]);
    }
  }
}

template <typename V>
void head_norm_rope_rows(const RopeKernel& k, void* y, int64_t y_stride, int64_t begin,
                         int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    head_norm_rope_typed<V, X>(k, static_cast<X*>(y), y_stride, begin, end);
  });
}

template <typename V>
void head_inv_rms_rows(const RopeKernel& k, float* inv_rms, int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    for (int64_t row = begin; row < end; ++row) {
      const X* x_row = static_cast<const X*>(k.x) + row * k.x_stride;
      inv_rms[row] = inv_rms_of<V>(x_row, k.dim, k.eps);
    }
  });
}

// y1 = n1 c - n2 s, y2 = n2 c + n1 s; the transpose of that rotation:
// d_n1 = d_y1 c + d_y2 s, d_n2 = d_y2 c - d_y1 s.
template <typename V, typename F>
[[gnu::always_inline]] inline void rotate_back(F d_y1, F d_y2, F c, F s, F& d_n1, F& d_n2) {
  d_n1 = V::fma(d_y2, s, d_y1 * c);
  d_n2 = V::fnma(d_y1, s, d_y2 * c);
}

// n = x inv w: with g = d_n w, d_x = inv (g - x inv^2 mean(g x)).
template <typename V, typename X, typename DY, typename DX>
void head_norm_rope_backward_typed(const RopeKernel& k, const DY* d_y, int64_t d_y_stride, DX* d_x,
                                   int64_t d_x_stride, int64_t begin, int64_t end) {
  const int64_t half = k.dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const X* x_row = static_cast<const X*>(k.x) + row * k.x_stride;
    const DY* d_y_row = d_y + row * d_y_stride;
    DX* d_x_row = d_x + row * d_x_stride;
    const int64_t position = k.positions[row / k.num_heads];
    const float* cos = k.cos + position * k.table_stride;
    const float* sin = k.sin + position * k.table_stride;
    auto zero = V::set1(0.0f);
    const auto load_back = [&](int64_t h, auto part, auto& d_n1, auto& d_n2) {
      rotate_back<V>(V::load(d_y_row + h, part), V::load(d_y_row + half + h, part),
                     V::load(cos + h, part), V::load(sin + h, part), d_n1, d_n2);
    };
    if (k.weight == nullptr) {
      DX halves[kMaxInterleavedDim];
      DX* to = k.interleaved ? halves : d_x_row;
      for_chunks<V>(half, [&](int64_t h, auto part) {
        auto d_n1 = zero, d_n2 = zero;
        load_back(h, part, d_n1, d_n2);
        V::store(to + h, d_n1, part);
        V::store(to + half + h, d_n2, part);
      });
      if (k.interleaved) join_pairs<V>(halves, half, d_x_row);
      continue;
    }
    const float inv = inv_rms_of<V>(x_row, k.dim, k.eps);
    auto dot = zero;
    for_chunks<V>(half, [&](int64_t h, auto part) {
      auto d_n1 = zero, d_n2 = zero;
      load_back(h, part, d_n1, d_n2);
      const auto g1 = d_n1 * V::load(k.weight + h, part);
      const auto g2 = d_n2 * V::load(k.weight + half + h, part);
      dot = V::fma(g1, V::load(x_row + h, part), dot);
      dot = V::fma(g2, V::load(x_row + half + h, part), dot);
    });
    const auto scale = V::set1(inv);
    const auto slope = V::set1(V::sum(dot) / static_cast<float>(k.dim) * inv * inv);
    for_chunks<V>(half, [&](int64_t h, auto part) {
      auto d_n1 = zero, d_n2 = zero;
      load_back(h, part, d_n1, d_n2);
      const auto g1 = d_n1 * V::load(k.weight + h, part);
      const auto g2 = d_n2 * V::load(k.weight + half + h, part);
      const auto x1 = V::load(x_row + h, part);
      const auto x2 = V::load(x_row + half + h, part);
      V::store(d_x_row + h, V::fnma(slope, x1, g1) * scale, part);
      V::store(d_x_row + half + h, V::fnma(slope, x2, g2) * scale, part);
    });
  }
}

template <typename V>
void head_norm_rope_backward_rows(const RopeKernel& k, const void* d_y, DType d_y_type,
                                  int64_t d_y_stride, void* d_x, DType d_x_type, int64_t d_x_stride,
                                  int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      with_type<V>(d_x_type, [&]<typename DX>() {
        head_norm_rope_backward_typed<V, X, DY, DX>(k, static_cast<const DY*>(d_y), d_y_stride,
                                                    static_cast<DX*>(d_x), d_x_stride, begin, end);
      });
    });
  });
}

// d_weight += sum over rows ascending of d_n (x inv), one chain a column.
template <typename V>
void head_norm_rope_backward_columns(const RopeKernel& k, const float* inv_rms, const void* d_y,
                                     DType d_y_type, int64_t d_y_stride, float* d_weight,
                                     int64_t begin, int64_t end) {
  const int64_t half = k.dim / 2;
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for (int64_t row = 0; row < k.num_rows; ++row) {
        const X* x_row = static_cast<const X*>(k.x) + row * k.x_stride;
        const DY* d_y_row = static_cast<const DY*>(d_y) + row * d_y_stride;
        const int64_t position = k.positions[row / k.num_heads];
        const float* cos = k.cos + position * k.table_stride;
        const float* sin = k.sin + position * k.table_stride;
        const auto inv = V::set1(inv_rms[row]);
        for_chunks<V>(end - begin, [&](int64_t i, auto part) {
          const int64_t h = begin + i;
          auto d_n1 = inv, d_n2 = inv;
          rotate_back<V>(V::load(d_y_row + h, part), V::load(d_y_row + half + h, part),
                         V::load(cos + h, part), V::load(sin + h, part), d_n1, d_n2);
          const auto x1 = V::load(x_row + h, part) * inv;
          const auto x2 = V::load(x_row + half + h, part) * inv;
          V::store(d_weight + h, V::fma(d_n1, x1, V::load(d_weight + h, part)), part);
          V::store(d_weight + half + h, V::fma(d_n2, x2, V::load(d_weight + half + h, part)), part);
        });
      }
    });
  });
}

}  // namespace strata::ops::cpu
