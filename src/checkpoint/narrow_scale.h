// SPDX-License-Identifier: Apache-2.0
// Which f32 scales weights may have that stay in few bits (NarrowScale::kFloat).
#pragma once
#include <cmath>

namespace strata {

// Every product with a code is then 0 or a normal number: of subnormal ones instructions round to
// bf16 otherwise. No trained weight is near.
inline bool fits_narrow(float scale) {
  constexpr float kSmallest = 0x1p-110f;
  return std::isfinite(scale) && (scale == 0.0f || std::fabs(scale) >= kSmallest);
}

}  // namespace strata
