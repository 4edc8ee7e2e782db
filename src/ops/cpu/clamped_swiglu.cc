// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/clamped_swiglu.h"

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

ClampedInputs inputs_of(const SwigluForm& form, TensorView gate, TensorView up, TensorView scales,
                        int64_t row) {
  return {.type = gate.dtype,
          .gate = gate.row(row),
          .up = up.row(row),
          .form = form,
          .scale = scales.empty() ? 1.0f : scales.f32()[row]};
}

}  // namespace

void clamped_swiglu(CpuBackend& backend, const SwigluForm& form, TensorView gate, TensorView up,
                    TensorView scales, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        clamped_swiglu_row<V>(inputs_of(form, gate, up, scales, row), y.row(row), gate.cols());
      }
    });
  });
}

void clamped_swiglu_backward(CpuBackend& backend, const SwigluForm& form, TensorView gate,
                             TensorView up, TensorView scales, TensorView d_y, TensorView d_gate,
                             TensorView d_up, TensorView d_scales) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float d_scale = clamped_swiglu_backward_row<V>(
            inputs_of(form, gate, up, scales, row), d_y.dtype, d_y.row(row), d_gate.row(row),
            d_up.row(row), gate.cols());
        if (!d_scales.empty()) d_scales.f32()[row] = d_scale;
      }
    });
  });
}

}  // namespace strata::ops::cpu
