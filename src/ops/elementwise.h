// SPDX-License-Identifier: Apache-2.0
// Small whole-tensor ops. Engine thread only; each element is computed alone, so no order matters
// except where said. What is a std::span is a list of the host.
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/index.h"
#include "tensor/view.h"

namespace strata::ops {

// y = x with conversion between f32, bf16 and f16 (rounding to nearest even); shapes equal; row
// strides allowed.
void copy(Backend& backend, TensorView x, TensorView y);

// y = 0; dense.
void fill_zero(Backend& backend, TensorView y);

// y = value; f32, dense.
void fill(Backend& backend, TensorView y, float value);

// x [*] f32 becomes what bf16 holds of it, rounded to nearest even, still f32.
void round_to_bf16_in_place(Backend& backend, TensorView x);

// Copies between tensors and the host's own memory, one behind the other, converting as copy does.
void to_host(Backend& backend, TensorView x, std::span<float> out);
void from_host(Backend& backend, std::span<const float> values, TensorView y);
void to_host(Backend& backend, IndexView<int32_t> x, std::span<int32_t> out);
void to_host(Backend& backend, IndexView<int64_t> x, std::span<int64_t> out);
void from_host(Backend& backend, std::span<const int32_t> values, IndexView<int32_t> y);
void from_host(Backend& backend, std::span<const int64_t> values, IndexView<int64_t> y);

// Bytes of tensor memory to another place there.
void copy_bytes(Backend& backend, const void* from, void* to, int64_t bytes);

// y += x; y f32, x f32 or bf16; same shape.
void add_into(Backend& backend, TensorView x, TensorView y);

// y = factor x, one fp32 product rounded once; x and y f32 or bf16; same shape; y may lie over x
// when their types agree. Gemma's embedding rows, of which sqrt(D) in the compute dtype is the
// factor.
void scale(Backend& backend, TensorView x, float factor, TensorView y);

// The same with a factor in tensor memory, [1] f32: Gemma 4's layer_scalar.
void scale_by(Backend& backend, TensorView x, TensorView factor, TensorView y);

// y[i] = x[rows[i]]: gathers whole rows, same type. Rows are numbers in tensor memory, or a list of
// the host.
void gather(Backend& backend, TensorView x, IndexView<int32_t> rows, TensorView y);
void gather(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y);

// y[t] = add[t] + (x[rows[t k]] + x[rows[t k + 1]] + ...), k = rows.size() / T, in that order, one
// fp32 chain rounded once. x [n, D] f32 or bf16, add [T, D] f32 or empty, y [T, D] f32 or bf16.
void gather_sum(Backend& backend, TensorView x, IndexView<int32_t> rows, TensorView add,
                TensorView y);

// y[i, j] = factor * x[j, columns[i]]: columns as rows. x [r, n] f32, y [*, r] dense; f32, or bf16:
// then x is rounded before the product, as a copy of it in bf16 is, and the product after.
void gather_columns(Backend& backend, TensorView x, std::span<const int32_t> columns, float factor,
                    TensorView y);

// y[j, columns[i]] += x[i, j], i ascending, one chain an element from the stored value; x [n, r]
// and y [r, *] f32, dense; columns may repeat.
void scatter_add_columns(Backend& backend, TensorView x, std::span<const int32_t> columns,
                         TensorView y);

// y[rows[i], columns[i]] = values[i], rounded once; y f32 or bf16; places differ.
void scatter_values(Backend& backend, std::span<const int32_t> rows,
                    std::span<const int32_t> columns, std::span<const float> values, TensorView y);

// y[rows[i]] += x[i], i ascending, y f32 [*, D], x f32 or bf16 [n, D]; rows may repeat (embedding
// gradient).
void scatter_add(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y);

// y[n] += sum over t ascending of x[t, n], one chain from the stored value; y [N] f32 (bias
// gradient).
void add_rows_into(Backend& backend, TensorView x, TensorView y);

// Sum of squares in double: one sum a row, in a fixed order; then the rows ascending. Neither
// threads nor how rows are divided among machines matter. Takes 8 bytes a row of scratch where
// there are several threads, and none on a worker.
double sum_of_squares(Backend& backend, TensorView x);

// The sums of several tensors, added in their order. A small tensor is one worker's; all share a
// large one.
double sum_of_squares(Backend& backend, std::span<const TensorView> x);

}  // namespace strata::ops
