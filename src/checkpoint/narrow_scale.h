// SPDX-License-Identifier: Apache-2.0
// Which f32 scales weights may have that stay in few bits (NarrowScale::kFloat), and where they
// stand in a row.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace strata {

// Every product with a code, of which the least but 0 is 2^-17, is then 0 or a normal number: of
// subnormal ones instructions round to bf16 otherwise; and it is far enough from infinity to be
// rounded with floats. No trained weight is near.
inline bool fits_narrow(float scale) {
  constexpr float kSmallest = 0x1p-108f, kLargest = 0x1p110f;
  const float size = std::fabs(scale);
  return size == 0.0f || (size >= kSmallest && size <= kLargest);
}

// Whether e4m3's scale fits, times 256: kernels read 2^-112 of a code, and the scale times 2^112.
inline bool fits_narrow_fp8(float scale) {
  return fits_narrow(scale) && std::fabs(scale) <= 0x1p15f;
}

// Fills the fields of a row, one for each `block` columns, with scale_at(column); the first scale
// that does not fit, or nothing.
template <typename ScaleAt>
std::optional<float> pack_row_scales(const ScaleAt& scale_at, int64_t block, int64_t cols,
                                     std::span<std::byte> fields) {
  for (int64_t i = 0; i < std::ssize(fields) / 4; ++i) {
    const float scale = scale_at(std::min(i * block, cols - 1));
    if (!fits_narrow(scale)) return scale;
    std::memcpy(fields.data() + i * 4, &scale, sizeof(scale));
  }
  return std::nullopt;
}

}  // namespace strata
