// SPDX-License-Identifier: Apache-2.0
// What the checks of several ops share.
#pragma once
#include "base/check.h"
#include "tensor/dtype.h"

namespace strata::ops {

// Types that ops compute on; f16 is met in files alone.
inline bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

}  // namespace strata::ops
