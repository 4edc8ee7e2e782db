// SPDX-License-Identifier: Apache-2.0
// Rows times numbers of their own: y[r] = scales[r] x[r]. What an expert reads of a token may be
// times the router's weight (HF modeling_llama4.py, Llama4TextMoe). n rows, D width; scales [n]
// f32. Products in fp32, rounded once. Each row is computed alone. Engine thread only.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

// x, y [n, D] of one type, f32 or bf16; y may lie over x.
void scale_rows(Backend& backend, TensorView x, TensorView scales, TensorView y);

// From d_y [n, D] f32: d_x [n, D] f32 = scales d_y, which may lie over d_y; d_scales [n] f32 = d_y
// . x of each row, sixteen interleaved partial sums and then their tree.
void scale_rows_backward(Backend& backend, TensorView x, TensorView scales, TensorView d_y,
                         TensorView d_x, TensorView d_scales);

}  // namespace strata::ops
