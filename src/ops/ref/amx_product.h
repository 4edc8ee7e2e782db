// SPDX-License-Identifier: Apache-2.0
// The oracle of the path `amx`: products of bf16 as Intel's TDPBF16PS makes them (SDM, volume 2),
// in plain C++, to the bit but for the payload of a NaN.
#pragma once
#include <cmath>
#include <cstdint>

#include "tensor/dtype.h"

namespace strata::ops::ref {

constexpr int64_t kGroupPairs = 16;  // of a full group

// Zero of the same sign for a denormal.
inline float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// a b + c, rounded once to 24 bits whatever the exponent, then flushed; inputs are flushed before.
inline float flushing_fma(float a, float b, float c) {
  a = flush(a);
  b = flush(b);
  c = flush(c);
  const float sum = std::fma(a, b, c);
  // Rounded on the coarser grid of denormals, a sum just below the least normal number comes out as
  // that number. The sum is asked again where the grid is fine: c is below 2^-101 here.
  const bool at_border = std::fabs(sum) == 0x1p-126f;
  if (at_border && std::fabs(std::fma(a * 0x1p60f, b, c * 0x1p60f)) < 0x1p-66f) {
    return std::copysign(0.0f, sum);
  }
  return flush(sum);
}

inline float flushing_add(float a, float b) { return flush(flush(a) + flush(b)); }

// sum + one group of `count` elements (1 to 32), whose missing ones are zeros. x and w step by
// their strides from element to element.
inline float add_group(float sum, const Bf16* x, int64_t x_stride, const Bf16* w, int64_t w_stride,
                       int64_t count) {
  float chains[2] = {};
  for (int64_t k = 0; k < 2 * kGroupPairs; ++k) {
    const float a = k < count ? to_float(x[k * x_stride]) : 0.0f;
    const float b = k < count ? to_float(w[k * w_stride]) : 0.0f;
    chains[k % 2] = flushing_fma(a, b, chains[k % 2]);
  }
  return flushing_add(sum, flushing_add(chains[0], chains[1]));
}

// sum + the product of `count` elements, in groups from the first.
inline float add_product(float sum, const Bf16* x, int64_t x_stride, const Bf16* w,
                         int64_t w_stride, int64_t count) {
  constexpr int64_t kGroup = 2 * kGroupPairs;
  for (int64_t k = 0; k < count; k += kGroup) {
    sum = add_group(sum, x + k * x_stride, x_stride, w + k * w_stride, w_stride,
                    count - k < kGroup ? count - k : kGroup);
  }
  return sum;
}

}  // namespace strata::ops::ref
