// SPDX-License-Identifier: Apache-2.0
// Head norm and rotary embedding as templates over the path; see cpu/simd.h for what may be called
// here. A row is walked in pairs of chunks, h of the first half and h + R / 2 of the second, and
// then from R on in chunks.
#include "ops/cpu/inv_rms_impl.h"
#include "ops/cpu/rope.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// Rows whose norms are found together: their chains overlap.
constexpr int64_t kRopeBatch = 8;

// Calls body(h, part) for the chunks of the columns that are not rotated.
template <typename V, bool kPartial, typename Body>
[[gnu::always_inline]] inline void for_unrotated_chunks(const RopeKernel& k, Body&& body) {
  if constexpr (kPartial) {
    for_chunks<V>(k.dim - k.rotary_dim,
                  [&](int64_t i, auto part) { body(k.rotary_dim + i, part); });
  }
}

// Between pairs (2h, 2h + 1) and (h, h + H / 2).
template <typename V, typename X>
[[gnu::always_inline]] inline void deinterleave(const X* from, int64_t half, X* to) {
  for (int64_t h = 0; h < half; ++h) {
    to[h] = from[2 * h];
    to[half + h] = from[2 * h + 1];
  }
}
template <typename V, typename X>
[[gnu::always_inline]] inline void interleave(const X* from, int64_t half, X* to) {
  for (int64_t h = 0; h < half; ++h) {
    to[2 * h] = from[h];
    to[2 * h + 1] = from[half + h];
  }
}

template <typename V, bool kPartial, typename X>
[[gnu::always_inline]] inline void head_norm_rope_row(const RopeKernel& k, const X* x, X* y,
                                                      int64_t position, float inv_rms) {
  const int64_t half = k.rotary_dim / 2;
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
  for_unrotated_chunks<V, kPartial>(k, [&](int64_t h, auto part) {
    auto value = V::load(x + h, part);
    if (k.weight != nullptr) value = value * inv * V::load(k.weight + h, part);
    V::store(y + h, value, part);
  });
}

// The row as head_norm_rope_row reads it: pairs come in halves.
template <typename V, typename X>
[[gnu::always_inline]] inline const X* row_in_halves(const RopeKernel& k, const X* x_row,
                                                     X* halves) {
  if (!k.interleaved) return x_row;
  deinterleave<V>(x_row, k.rotary_dim / 2, halves);
  for (int64_t h = k.rotary_dim; h < k.dim; ++h) halves[h] = x_row[h];
  return halves;
}

template <typename V, bool kPartial, typename X>
void head_norm_rope_typed(const RopeKernel& k, X* y, int64_t y_stride, int64_t begin, int64_t end) {
  const X* x = static_cast<const X*>(k.x);
  float inv[kRopeBatch] = {};
  for (int64_t first = begin; first < end; first += kRopeBatch) {
    const int64_t last = end - first < kRopeBatch ? end : first + kRopeBatch;
    for (int64_t row = first; k.weight != nullptr && row < last; ++row) {
      inv[row - first] = inv_rms_of<V>(x + row * k.x_stride, k.dim, k.eps);
    }
    for (int64_t row = first; row < last; ++row) {
      X halves[kMaxInterleavedDim];
      head_norm_rope_row<V, kPartial>(k, row_in_halves<V>(k, x + row * k.x_stride, halves),
                                      y + row * y_stride, k.positions[row / k.num_heads],
                                      inv[row - first]);
    }
  }
}

template <typename V>
void head_norm_rope_rows(const RopeKernel& k, void* y, int64_t y_stride, int64_t begin,
                         int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    if (k.rotary_dim < k.dim) {
      head_norm_rope_typed<V, true>(k, static_cast<X*>(y), y_stride, begin, end);
    } else {
      head_norm_rope_typed<V, false>(k, static_cast<X*>(y), y_stride, begin, end);
    }
  });
}

template <typename V>
void compute_head_inv_rms_rows(const RopeKernel& k, float* inv_rms, int64_t begin, int64_t end) {
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

// One row of d_y, rotated back: d_n of its pairs and of its other columns.
template <typename V, typename DY>
struct RotatedBackRow {
  const DY* d_y;
  const float* cos;
  const float* sin;
  int64_t half;

  template <typename P, typename F>
  [[gnu::always_inline]] inline void pair(int64_t h, P part, F& d_n1, F& d_n2) const {
    rotate_back<V>(V::load(d_y + h, part), V::load(d_y + half + h, part), V::load(cos + h, part),
                   V::load(sin + h, part), d_n1, d_n2);
  }
};

template <typename V, typename DY>
[[gnu::always_inline]] inline RotatedBackRow<V, DY> rotated_back_row(const RopeKernel& k,
                                                                     const DY* d_y, int64_t row) {
  const int64_t table = k.positions[row / k.num_heads] * k.table_stride;
  return {d_y, k.cos + table, k.sin + table, k.rotary_dim / 2};
}

// y = R x: d_x = R^T d_y.
template <typename V, bool kPartial, typename DY, typename DX>
[[gnu::always_inline]] inline void rope_backward_row(const RopeKernel& k,
                                                     const RotatedBackRow<V, DY>& rotated,
                                                     DX* d_x) {
  const int64_t half = rotated.half;
  DX halves[kMaxInterleavedDim];
  DX* to = k.interleaved ? halves : d_x;
  for_chunks<V>(half, [&](int64_t h, auto part) {
    auto d_n1 = V::set1(0.0f), d_n2 = V::set1(0.0f);
    rotated.pair(h, part, d_n1, d_n2);
    V::store(to + h, d_n1, part);
    V::store(to + half + h, d_n2, part);
  });
  if (k.interleaved) interleave<V>(halves, half, d_x);
  for_unrotated_chunks<V, kPartial>(
      k, [&](int64_t h, auto part) { V::store(d_x + h, V::load(rotated.d_y + h, part), part); });
}

// sum of g x, with g = d_n w.
template <typename V, bool kPartial, typename X, typename DY>
[[gnu::always_inline]] inline float gradient_dot_x(const RopeKernel& k,
                                                   const RotatedBackRow<V, DY>& rotated,
                                                   const X* x) {
  const int64_t half = rotated.half;
  auto dot = V::set1(0.0f);
  for_chunks<V>(half, [&](int64_t h, auto part) {
    auto d_n1 = dot, d_n2 = dot;
    rotated.pair(h, part, d_n1, d_n2);
    const auto g1 = d_n1 * V::load(k.weight + h, part);
    const auto g2 = d_n2 * V::load(k.weight + half + h, part);
    dot = V::fma(g1, V::load(x + h, part), dot);
    dot = V::fma(g2, V::load(x + half + h, part), dot);
  });
  for_unrotated_chunks<V, kPartial>(k, [&](int64_t h, auto part) {
    const auto g = V::load(rotated.d_y + h, part) * V::load(k.weight + h, part);
    dot = V::fma(g, V::load(x + h, part), dot);
  });
  return V::sum(dot);
}

// n = x inv w: with g = d_n w, d_x = inv (g - x inv^2 mean(g x)).
template <typename V, bool kPartial, typename X, typename DY, typename DX>
[[gnu::always_inline]] inline void head_norm_rope_backward_row(const RopeKernel& k,
                                                               const RotatedBackRow<V, DY>& rotated,
                                                               const X* x, DX* d_x) {
  const int64_t half = rotated.half;
  const float inv = inv_rms_of<V>(x, k.dim, k.eps);
  const float dot = gradient_dot_x<V, kPartial>(k, rotated, x);
  const auto scale = V::set1(inv);
  const auto slope = V::set1(dot / static_cast<float>(k.dim) * inv * inv);
  for_chunks<V>(half, [&](int64_t h, auto part) {
    auto d_n1 = scale, d_n2 = scale;
    rotated.pair(h, part, d_n1, d_n2);
    const auto g1 = d_n1 * V::load(k.weight + h, part);
    const auto g2 = d_n2 * V::load(k.weight + half + h, part);
    const auto x1 = V::load(x + h, part);
    const auto x2 = V::load(x + half + h, part);
    V::store(d_x + h, V::fnma(slope, x1, g1) * scale, part);
    V::store(d_x + half + h, V::fnma(slope, x2, g2) * scale, part);
  });
  for_unrotated_chunks<V, kPartial>(k, [&](int64_t h, auto part) {
    const auto g = V::load(rotated.d_y + h, part) * V::load(k.weight + h, part);
    V::store(d_x + h, V::fnma(slope, V::load(x + h, part), g) * scale, part);
  });
}

template <typename V, bool kPartial, typename X, typename DY, typename DX>
void head_norm_rope_backward_typed(const RopeKernel& k, const DY* d_y, int64_t d_y_stride, DX* d_x,
                                   int64_t d_x_stride, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const X* x_row = static_cast<const X*>(k.x) + row * k.x_stride;
    const auto rotated = rotated_back_row<V>(k, d_y + row * d_y_stride, row);
    if (k.weight == nullptr) {
      rope_backward_row<V, kPartial>(k, rotated, d_x + row * d_x_stride);
    } else {
      head_norm_rope_backward_row<V, kPartial>(k, rotated, x_row, d_x + row * d_x_stride);
    }
  }
}

template <typename V>
void head_norm_rope_backward_rows(const RopeKernel& k, const void* d_y, DType d_y_type,
                                  int64_t d_y_stride, void* d_x, DType d_x_type, int64_t d_x_stride,
                                  int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      with_type<V>(d_x_type, [&]<typename DX>() {
        const DY* from = static_cast<const DY*>(d_y);
        DX* to = static_cast<DX*>(d_x);
        if (k.rotary_dim < k.dim) {
          head_norm_rope_backward_typed<V, true, X>(k, from, d_y_stride, to, d_x_stride, begin,
                                                    end);
        } else {
          head_norm_rope_backward_typed<V, false, X>(k, from, d_y_stride, to, d_x_stride, begin,
                                                     end);
        }
      });
    });
  });
}

// d_weight += sum over rows ascending of d_n (x inv), one chain a column.
template <typename V>
void add_head_norm_rope_d_weight(const RopeKernel& k, const float* inv_rms, const void* d_y,
                                 DType d_y_type, int64_t d_y_stride, float* d_weight, int64_t begin,
                                 int64_t end) {
  const int64_t half = k.rotary_dim / 2;
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for (int64_t row = 0; row < k.num_rows; ++row) {
        const X* x_row = static_cast<const X*>(k.x) + row * k.x_stride;
        const auto rotated =
            rotated_back_row<V>(k, static_cast<const DY*>(d_y) + row * d_y_stride, row);
        const auto inv = V::set1(inv_rms[row]);
        for_chunks<V>(end - begin, [&](int64_t i, auto part) {
          const int64_t h = begin + i;
          auto d_n1 = inv, d_n2 = inv;
          rotated.pair(h, part, d_n1, d_n2);
          const auto x1 = V::load(x_row + h, part) * inv;
          const auto x2 = V::load(x_row + half + h, part) * inv;
          V::store(d_weight + h, V::fma(d_n1, x1, V::load(d_weight + h, part)), part);
          V::store(d_weight + half + h, V::fma(d_n2, x2, V::load(d_weight + half + h, part)), part);
        });
      }
    });
  });
}

template <typename V>
void add_unrotated_d_weight(const RopeKernel& k, const float* inv_rms, const void* d_y,
                            DType d_y_type, int64_t d_y_stride, float* d_weight, int64_t begin,
                            int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      for (int64_t row = 0; row < k.num_rows; ++row) {
        const X* x_row = static_cast<const X*>(k.x) + row * k.x_stride + begin;
        const DY* d_y_row = static_cast<const DY*>(d_y) + row * d_y_stride + begin;
        const auto inv = V::set1(inv_rms[row]);
        for_chunks<V>(end - begin, [&](int64_t i, auto part) {
          const auto x_hat = V::load(x_row + i, part) * inv;
          float* sum = d_weight + begin + i;
          V::store(sum, V::fma(V::load(d_y_row + i, part), x_hat, V::load(sum, part)), part);
        });
      }
    });
  });
}

template void head_norm_rope_rows<ThisPath>(const RopeKernel&, void*, int64_t, int64_t, int64_t);
template void compute_head_inv_rms_rows<ThisPath>(const RopeKernel&, float*, int64_t, int64_t);
template void head_norm_rope_backward_rows<ThisPath>(const RopeKernel&, const void*, DType, int64_t,
                                                     void*, DType, int64_t, int64_t, int64_t);
template void add_head_norm_rope_d_weight<ThisPath>(const RopeKernel&, const float*, const void*,
                                                    DType, int64_t, float*, int64_t, int64_t);
template void add_unrotated_d_weight<ThisPath>(const RopeKernel&, const float*, const void*, DType,
                                               int64_t, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
