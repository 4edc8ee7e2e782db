// SPDX-License-Identifier: Apache-2.0
// What the checks of several ops share.
#pragma once
#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/panel.h"

namespace strata::ops {

// Types that ops compute on; f16 is met in files alone.
inline bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// CHECKs that a product of rows of `dtype` can take these weights.
inline void check_weights(const PanelView& w, DType dtype) {
  CHECK(is_float(w.dtype) && w.dtype == dtype, w.dtype, dtype);
  CHECK(w.width == 16 || w.width == 32 || w.width == 64, w.width);
  CHECK(w.rows > 0 && w.cols > 0, w.rows, w.cols);
}

}  // namespace strata::ops
