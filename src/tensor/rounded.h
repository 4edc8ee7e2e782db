// SPDX-License-Identifier: Apache-2.0
// Values as a type of elements has them.
#pragma once
#include "tensor/dtype.h"

namespace strata {

// The nearest value of the type, as f32.
inline float rounded_to(float value, DType dtype) {
  if (dtype == DType::kBF16) return round_to_bf16(value);
  return dtype == DType::kF16 ? f16_to_float(float_to_f16(value)) : value;
}

}  // namespace strata
