// SPDX-License-Identifier: Apache-2.0
// The multipliers of a norm whose checkpoints store them less a constant.
#pragma once
#include "ops/cpu/dispatch.h"
#include "ops/cpu/rms_norm.h"

namespace strata::ops::cpu {

// [D] offset + weight, each one fp32 addition, from scratch; the weight itself when the offset is
// 0.
inline const float* compute_offset_weight(CpuBackend& backend, TensorView weight, float offset) {
  if (offset == 0.0f) return weight.f32();
  const int64_t dim = weight.shape.num_elements();
  float* sum = backend.scratch().take(DType::kF32, {dim}).f32();
  if (backend.is_counting()) return sum;
  with_path(backend.path(), [&]<typename V>() { add_offset<V>(weight.f32(), offset, sum, dim); });
  return sum;
}

}  // namespace strata::ops::cpu
