// Small whole-tensor ops. Engine thread only; each element is computed alone, so no order matters
// except where said.
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

// y = x with conversion between f32, bf16 and f16 (rounding to nearest even); shapes equal; row
// strides allowed.
void copy(Backend& backend, TensorView x, TensorView y);

// y = 0; dense.
void fill_zero(Backend& backend, TensorView y);

// y += x; y f32, x f32 or bf16; same shape.
void add_into(Backend& backend, TensorView x, TensorView y);

// y = factor x, one fp32 product rounded once; x and y f32 or bf16; same shape; y may lie over x
// when their types agree. Gemma's embedding rows, of which sqrt(D) in the compute dtype is the
// factor.
void scale(Backend& backend, TensorView x, float factor, TensorView y);

// y[i] = x[rows[i]]: gathers whole rows, same type.
void gather(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y);

// y[t] = add[t] + (x[rows[t k]] + x[rows[t k + 1]] + ...), k = rows.size() / T, in that order, one
// fp32 chain rounded once. x [n, D] f32 or bf16, add [T, D] f32 or empty, y [T, D] f32 or bf16.
void gather_sum(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView add,
                TensorView y);

// y[rows[i]] += x[i], i ascending, y f32 [*, D], x f32 or bf16 [n, D]; rows may repeat (embedding
// gradient).
void scatter_add(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y);

// y[n] += sum over t ascending of x[t, n], one chain from the stored value; y [N] f32 (bias
// gradient).
void add_rows_into(Backend& backend, TensorView x, TensorView y);

// Sum of squares in double: one sum a row, in a fixed order; then the rows ascending. Neither
// threads nor how rows are divided among machines matter. Takes 8 bytes a row of scratch where
// there are several threads, and none on a lane.
double sum_of_squares(Backend& backend, TensorView x);

}  // namespace strata::ops
