// SPDX-License-Identifier: Apache-2.0
// Norm and rotation of tails as templates over the path; see cpu/simd.h for what may be called
// here.
#include "ops/cpu/inv_rms_impl.h"
#include "ops/cpu/tail_rope.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

// The angle's cosine and sine for the pair, and the sign of the turn.
template <typename V>
struct TailRotation {
  const float* cos;
  const float* sin;
  float sign;

  [[gnu::always_inline]] TailRotation(const TailRopeKernel& k, int64_t row, bool back) {
    const int64_t at = static_cast<int64_t>(k.positions[row / k.num_heads]) * k.table_stride;
    cos = k.cos + at;
    sin = k.sin + at;
    sign = k.inverse != back ? -1.0f : 1.0f;
  }
  // Turns the pairs of tail[0 .. rotated).
  [[gnu::always_inline]] void rotate(float* tail, int64_t rotated) const {
    for (int64_t i = 0; i < rotated / 2; ++i) {
      const float a = tail[2 * i];
      const float b = tail[2 * i + 1];
      const float s = sign * sin[i];
      tail[2 * i] = a * cos[i] - b * s;
      tail[2 * i + 1] = a * s + b * cos[i];
    }
  }
};

// to = from, in its type.
template <typename V, typename From, typename To>
[[gnu::always_inline]] inline void copy_row(const From* from, int64_t width, To* to) {
  for_chunks<V>(width,
                [&](int64_t i, auto part) { V::store(to + i, V::load(from + i, part), part); });
}

// row = x inv w, where there are a norm and a weight.
template <typename V, typename X>
[[gnu::always_inline]] inline void tail_norm_row(const TailRopeKernel& k, const X* x, float* row) {
  const auto inv = V::set1(k.norm ? inv_rms_of<V>(x, k.width, k.eps) : 1.0f);
  for_chunks<V>(k.width, [&](int64_t i, auto part) {
    auto value = V::load(x + i, part);
    if (k.norm) value = value * inv;
    if (k.weight != nullptr) value = value * V::load(k.weight + i, part);
    V::store(row + i, value, part);
  });
}

template <typename V>
void tail_rope_rows(const TailRopeKernel& k, DType y_type, void* y, int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(y_type, [&]<typename Y>() {
      alignas(64) float row[kMaxTailWidth];
      for (int64_t r = begin; r < end; ++r) {
        tail_norm_row<V>(k, static_cast<const X*>(k.x) + r * k.width, row);
        TailRotation<V>(k, r, /*back=*/false).rotate(row + k.width - k.rotated, k.rotated);
        copy_row<V>(row, k.width, static_cast<Y*>(y) + r * k.width);
      }
    });
  });
}

// n = x inv: with g = w d, d_x = inv (g - n mean(g n)). row: d on entry, g on return.
template <typename V, typename X, typename DX>
[[gnu::always_inline]] inline void tail_norm_backward_row(const TailRopeKernel& k, const X* x,
                                                          float* row, DX* d_x) {
  const float inv = inv_rms_of<V>(x, k.width, k.eps);
  auto dot = V::set1(0.0f);
  for_chunks<V>(k.width, [&](int64_t i, auto part) {
    auto g = V::load(row + i, part);
    if (k.weight != nullptr) g = g * V::load(k.weight + i, part);
    V::store(row + i, g, part);
    dot = V::fma(g, V::load(x + i, part), dot);
  });
  const float mean = V::sum(dot) / static_cast<float>(k.width) * inv * inv;
  for_chunks<V>(k.width, [&](int64_t i, auto part) {
    const auto g = V::fnma(V::load(x + i, part), V::set1(mean), V::load(row + i, part));
    V::store(d_x + i, g * V::set1(inv), part);
  });
}

// y = turn(n w), n = x inv: with g = w turned-back d_y, d_x = inv (g - n mean(g n)).
template <typename V>
void tail_rope_backward_rows(const TailRopeKernel& k, DType d_y_type, const void* d_y,
                             DType d_x_type, void* d_x, float* row, int64_t begin, int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      with_type<V>(d_x_type, [&]<typename DX>() {
        for (int64_t r = begin; r < end; ++r) {
          const X* x = static_cast<const X*>(k.x) + r * k.width;
          const DY* d = static_cast<const DY*>(d_y) + r * k.width;
          DX* to = static_cast<DX*>(d_x) + r * k.width;
          copy_row<V>(d, k.width, row);
          TailRotation<V>(k, r, /*back=*/true).rotate(row + k.width - k.rotated, k.rotated);
          if (k.norm) {
            tail_norm_backward_row<V>(k, x, row, to);
          } else {
            copy_row<V>(row, k.width, to);
          }
        }
      });
    });
  });
}

template <typename V>
void compute_tail_inv_rms_rows(const TailRopeKernel& k, float* inv_rms, int64_t begin,
                               int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    for (int64_t r = begin; r < end; ++r) {
      inv_rms[r] = inv_rms_of<V>(static_cast<const X*>(k.x) + r * k.width, k.width, k.eps);
    }
  });
}

// Turns back what of `count` columns from an even `first` on is in row's tail.
template <typename V>
[[gnu::always_inline]] inline void rotate_back_columns(const TailRopeKernel& k, int64_t row,
                                                       int64_t first, int64_t count,
                                                       float* columns) {
  const int64_t tail = k.width - k.rotated;
  const TailRotation<V> turn(k, row, /*back=*/true);
  for (int64_t i = 0; i < count; i += 2) {
    if (first + i < tail) continue;
    const int64_t pair = (first + i - tail) / 2;
    TailRotation<V> one = turn;
    one.cos += pair;
    one.sin += pair;
    one.rotate(columns + i, 2);
  }
}

// The first `part.lanes` of 16 lanes, which may be all.
template <typename V, typename T>
[[gnu::always_inline]] inline auto load_lanes(const T* from, Part part) {
  return part.lanes == kLanes ? V::load(from, Whole{}) : V::load(from, part);
}
template <typename V, typename F>
[[gnu::always_inline]] inline void store_lanes(float* to, F x, Part part) {
  if (part.lanes == kLanes) {
    V::store(to, x, Whole{});
  } else {
    V::store(to, x, part);
  }
}

// d_weight += turned-back d_y x inv
template <typename V>
void add_tail_rope_d_weight(const TailRopeKernel& k, DType d_y_type, const void* d_y,
                            const float* inv_rms, int64_t num_rows, float* d_weight, int64_t begin,
                            int64_t end) {
  with_type<V>(k.x_type, [&]<typename X>() {
    with_type<V>(d_y_type, [&]<typename DY>() {
      float row[kLanes];
      for (int64_t c = begin; c < end; c += kLanes) {
        const Part part{static_cast<int>(end - c < kLanes ? end - c : kLanes)};
        auto sum = load_lanes<V>(d_weight + c, part);
        for (int64_t r = 0; r < num_rows; ++r) {
          const X* x = static_cast<const X*>(k.x) + r * k.width + c;
          const DY* d = static_cast<const DY*>(d_y) + r * k.width + c;
          V::store(row, load_lanes<V>(d, part), Whole{});
          rotate_back_columns<V>(k, r, c, part.lanes, row);
          const auto value = V::load(row, Whole{});
          sum = V::fma(value, load_lanes<V>(x, part) * V::set1(inv_rms[r]), sum);
        }
        store_lanes<V>(d_weight + c, sum, part);
      }
    });
  });
}

template void tail_rope_rows<ThisPath>(const TailRopeKernel&, DType, void*, int64_t, int64_t);
template void tail_rope_backward_rows<ThisPath>(const TailRopeKernel&, DType, const void*, DType,
                                                void*, float*, int64_t, int64_t);
template void add_tail_rope_d_weight<ThisPath>(const TailRopeKernel&, DType, const void*,
                                               const float*, int64_t, float*, int64_t, int64_t);
template void compute_tail_inv_rms_rows<ThisPath>(const TailRopeKernel&, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
