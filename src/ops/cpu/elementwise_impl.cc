// SPDX-License-Identifier: Apache-2.0
// Elementwise kernels as templates over the path; see cpu/simd.h for what may be called here.
#include "ops/cpu/elementwise.h"
#include "ops/cpu/this_path.h"

namespace strata::ops::cpu {

template <typename V>
void copy_piece(DType x_type, const void* x, DType y_type, void* y, int64_t n) {
  with_type<V>(x_type, [&]<typename X>() {
    with_type<V>(y_type, [&]<typename Y>() {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        V::store(static_cast<Y*>(y) + i, V::load(static_cast<const X*>(x) + i, part), part);
      });
    });
  });
}

template <typename V>
void add_piece(DType x_type, const void* x, float* y, int64_t n) {
  with_type<V>(x_type, [&]<typename X>() {
    for_chunks<V>(n, [&](int64_t i, auto part) {
      V::store(y + i, V::load(y + i, part) + V::load(static_cast<const X*>(x) + i, part), part);
    });
  });
}

template <typename V>
void scale_piece(DType x_type, const void* x, float factor, DType y_type, void* y, int64_t n) {
  with_type<V>(x_type, [&]<typename X>() {
    with_type<V>(y_type, [&]<typename Y>() {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const auto value = V::load(static_cast<const X*>(x) + i, part) * V::set1(factor);
        V::store(static_cast<Y*>(y) + i, value, part);
      });
    });
  });
}

template <typename V>
void scatter_add_rows_in_columns(DType x_type, const void* x, int64_t x_stride, const int32_t* rows,
                                 int64_t num_rows, float* y, int64_t y_stride, int64_t begin,
                                 int64_t end) {
  with_type<V>(x_type, [&]<typename X>() {
    for (int64_t i = 0; i < num_rows; ++i) {
      const X* x_row = static_cast<const X*>(x) + i * x_stride + begin;
      float* y_row = y + (rows == nullptr ? 0 : rows[i] * y_stride) + begin;
      for_chunks<V>(end - begin, [&](int64_t n, auto part) {
        V::store(y_row + n, V::load(y_row + n, part) + V::load(x_row + n, part), part);
      });
    }
  });
}

template <typename V>
void gather_sum_row(DType x_type, const void* x, int64_t x_stride, const int32_t* rows,
                    int64_t num_rows, const float* add, DType y_type, void* y, int64_t n) {
  with_type<V>(x_type, [&]<typename X>() {
    with_type<V>(y_type, [&]<typename Y>() {
      for_chunks<V>(n, [&](int64_t i, auto part) {
        const X* base = static_cast<const X*>(x) + i;
        auto sum = V::load(base + rows[0] * x_stride, part);
        for (int64_t j = 1; j < num_rows; ++j) {
          sum = sum + V::load(base + rows[j] * x_stride, part);
        }
        if (add != nullptr) sum = V::load(add + i, part) + sum;
        V::store(static_cast<Y*>(y) + i, sum, part);
      });
    });
  });
}

template <typename V>
double sum_of_squares_piece(DType x_type, const void* x, int64_t n) {
  double sum[kLanes] = {};
  with_type<V>(x_type, [&]<typename X>() {
    for_chunks<V>(n, [&](int64_t i, auto part) {
      float lane[kLanes];
      V::store(lane, V::load(static_cast<const X*>(x) + i, part), Whole{});
      for (int j = 0; j < kLanes; ++j) {
        sum[j] += static_cast<double>(lane[j]) * static_cast<double>(lane[j]);
      }
    });
  });
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return sum[0];
}

template void copy_piece<ThisPath>(DType, const void*, DType, void*, int64_t);
template void add_piece<ThisPath>(DType, const void*, float*, int64_t);
template void scale_piece<ThisPath>(DType, const void*, float, DType, void*, int64_t);
template void scatter_add_rows_in_columns<ThisPath>(DType, const void*, int64_t, const int32_t*,
                                                    int64_t, float*, int64_t, int64_t, int64_t);
template void gather_sum_row<ThisPath>(DType, const void*, int64_t, const int32_t*, int64_t,
                                       const float*, DType, void*, int64_t);
template double sum_of_squares_piece<ThisPath>(DType, const void*, int64_t);

}  // namespace strata::ops::cpu
