// SPDX-License-Identifier: Apache-2.0
// Which f32 scales weights may have that stay in few bits (NarrowScale::kFloat).
#pragma once
#include <cmath>

namespace strata {

// Every product with a code, of which the least but 0 is 2^-17, is then 0 or a normal number: of
// subnormal ones instructions round to bf16 otherwise; and it is far enough from infinity to be
// rounded with floats. No trained weight is near.
inline bool fits_narrow(float scale) {
  constexpr float kSmallest = 0x1p-108f, kLargest = 0x1p110f;
  const float size = std::fabs(scale);
  return size == 0.0f || (size >= kSmallest && size <= kLargest);
}

// Of e4m3, times 256: kernels read 2^-112 of a code, and the scale times 2^112.
inline bool fits_narrow_fp8(float scale) {
  return fits_narrow(scale) && std::fabs(scale) <= 0x1p15f;
}

}  // namespace strata
