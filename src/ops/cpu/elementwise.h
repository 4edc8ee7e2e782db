// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/elementwise.h for one path; n neighbouring elements unless said otherwise.
#pragma once
#include <span>

#include "ops/cpu/simd.h"
#include "tensor/index.h"

namespace strata {
class CpuBackend;
struct TensorView;
}  // namespace strata

namespace strata::ops::cpu {

// The CPU behind ops/elementwise.h: arguments are checked.
void copy(CpuBackend& backend, TensorView x, TensorView y);
void fill_zero(CpuBackend& backend, TensorView y);
void add_into(CpuBackend& backend, TensorView x, TensorView y);
void scale(CpuBackend& backend, TensorView x, float factor, TensorView y);
void scale_by(CpuBackend& backend, TensorView x, TensorView factor, TensorView y);
void gather(CpuBackend& backend, TensorView x, IndexView<int32_t> rows, TensorView y);
void gather_listed(CpuBackend& backend, TensorView x, std::span<const int32_t> rows, TensorView y);
void gather_sum(CpuBackend& backend, TensorView x, IndexView<int32_t> rows, TensorView add,
                TensorView y);
void scatter_add(CpuBackend& backend, TensorView x, std::span<const int32_t> rows, TensorView y);
void add_rows_into(CpuBackend& backend, TensorView x, TensorView y);
double sum_of_squares(CpuBackend& backend, TensorView x);
double add_squares(CpuBackend& backend, TensorView x, double sum);
double sum_of_squares_list(CpuBackend& backend, std::span<const TensorView> x);
void fill(CpuBackend& backend, TensorView y, float value);
void round_to_bf16_in_place(CpuBackend& backend, TensorView x);
void to_host(CpuBackend& backend, TensorView x, std::span<float> out);
void from_host(CpuBackend& backend, std::span<const float> values, TensorView y);
void indices_to_host(CpuBackend& backend, IndexView<int32_t> x, std::span<int32_t> out);
void ends_to_host(CpuBackend& backend, IndexView<int64_t> x, std::span<int64_t> out);
void indices_from_host(CpuBackend& backend, std::span<const int32_t> values, IndexView<int32_t> y);
void ends_from_host(CpuBackend& backend, std::span<const int64_t> values, IndexView<int64_t> y);
void copy_bytes(CpuBackend& backend, const void* from, void* to, int64_t bytes);
void gather_columns(CpuBackend& backend, TensorView x, std::span<const int32_t> columns,
                    float factor, TensorView y);
void scatter_add_columns(CpuBackend& backend, TensorView x, std::span<const int32_t> columns,
                         TensorView y);
void scatter_values(CpuBackend& backend, std::span<const int32_t> rows,
                    std::span<const int32_t> columns, std::span<const float> values, TensorView y);

// f32 and bf16 only.
template <typename V>
void copy_piece(DType x_type, const void* x, DType y_type, void* y, int64_t n);

template <typename V>
void add_piece(DType x_type, const void* x, float* y, int64_t n);

// y = factor x.
template <typename V>
void scale_piece(DType x_type, const void* x, float factor, DType y_type, void* y, int64_t n);

// Columns [begin, end): y[rows[i] * y_stride + n] += x[i * x_stride + n], i ascending; rows null
// means row 0 for every i.
template <typename V>
void scatter_add_rows_in_columns(DType x_type, const void* x, int64_t x_stride, const int32_t* rows,
                                 int64_t num_rows, float* y, int64_t y_stride, int64_t begin,
                                 int64_t end);

// y = add + (x[rows[0]] + x[rows[1]] + ...), one row of n elements; num_rows >= 1; null add: none.
template <typename V>
void gather_sum_row(DType x_type, const void* x, int64_t x_stride, const int32_t* rows,
                    int64_t num_rows, const float* add, DType y_type, void* y, int64_t n);

// In double: 16 interleaved partial sums, then their tree. Products of floats are exact in double.
template <typename V>
double sum_of_squares_piece(DType x_type, const void* x, int64_t n);

}  // namespace strata::ops::cpu
