// SPDX-License-Identifier: Apache-2.0
// Parameters are read, drawn and written a slice at a time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/weights/weights.h"

namespace strata::model {

// Small enough to stay in the shadow of the model, large enough for full read speed.
constexpr int64_t kSliceBytes = 32 << 20;

// Rows of a slice whose rows have so many elements of f32.
inline int64_t slice_rows(int64_t cols) {
  return std::max<int64_t>(1, kSliceBytes / (cols * dtype_bytes(DType::kF32)));
}

// body(begin, end, columns) for the rows [begin, end) of each slice of a parameter's [first, last).
template <typename Body>
void for_each_slice(const Parameter& parameter, int64_t first, int64_t last, Body body) {
  const int64_t cols = parameter.num_cols();
  const int64_t step = slice_rows(cols);
  for (int64_t begin = first; begin < last; begin += step)
    body(begin, std::min(last, begin + step), cols);
}
// body(begin, end, columns) for each slice of all rows of a parameter.
template <typename Body>
void for_each_slice(const Parameter& parameter, Body body) {
  for_each_slice(parameter, 0, parameter.num_rows(), body);
}

}  // namespace strata::model
