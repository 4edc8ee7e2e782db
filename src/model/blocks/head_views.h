// SPDX-License-Identifier: Apache-2.0
// Views of the heads of tokens, dense [T, N, H], and of their columns. T tokens, N heads, H head
// width.
#pragma once
#include "tensor/view.h"

namespace strata::model {

// All heads of a token as one row, [T, N H].
inline TensorView flat(TensorView heads) {
  return heads.reshape({heads.shape[0], heads.shape[1] * heads.shape[2]});
}

// rows [T, H] as one head a token, [T, 1, H].
inline TensorView as_head(TensorView rows) { return rows.reshape({rows.rows(), 1, rows.cols()}); }

// Columns [begin, end) of every head, [T, N, end - begin].
inline TensorView cols_of_all_heads(TensorView heads, int64_t begin, int64_t end) {
  CHECK(heads.shape.rank() == 3 && heads.dense() && end <= heads.cols());
  TensorView part = heads;
  part.data = static_cast<char*>(heads.data) + begin * dtype_bytes(heads.dtype);
  part.shape = {heads.shape[0], heads.shape[1], end - begin};
  return part;
}

// Columns [begin, end) of one head, [T, end - begin].
inline TensorView cols_of_one_head(TensorView heads, int64_t head, int64_t begin, int64_t end) {
  TensorView part = cols_of_all_heads(heads, begin, end);
  part.data = static_cast<char*>(part.data) + head * heads.cols() * dtype_bytes(heads.dtype);
  part.shape = {heads.shape[0], end - begin};
  part.row_stride = heads.shape[1] * heads.cols();
  return part;
}

}  // namespace strata::model
