#include "ops/clamped_swiglu.h"

#include "ops/cpu/clamped_swiglu.h"
#include "ops/cpu/dispatch.h"

namespace strata::ops {
namespace {

void check_like(TensorView view, TensorView gate) {
  CHECK(view.dtype == gate.dtype && view.shape == gate.shape, view.dtype, gate.dtype,
        view.shape.to_string(), gate.shape.to_string());
}

void check_inputs(float limit, TensorView gate, TensorView up, TensorView scales) {
  CHECK(cpu::is_float(gate.dtype), gate.dtype);
  CHECK(limit > 0.0f, limit);
  check_like(up, gate);
  CHECK(scales.empty() || (scales.dtype == DType::kF32 && scales.shape == Shape{gate.rows()}),
        scales.dtype, scales.shape.to_string(), gate.rows());
}

cpu::ClampedInputs inputs_of(float limit, TensorView gate, TensorView up, TensorView scales,
                             int64_t row) {
  return {.type = gate.dtype,
          .gate = gate.row(row),
          .up = up.row(row),
          .limit = limit,
          .scale = scales.empty() ? 1.0f : scales.f32()[row]};
}

}  // namespace

void clamped_swiglu(Backend& backend, float limit, TensorView gate, TensorView up,
                    TensorView scales, TensorView y) {
  check_inputs(limit, gate, up, scales);
  check_like(y, gate);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        cpu::clamped_swiglu_row<V>(inputs_of(limit, gate, up, scales, row), y.row(row),
                                   gate.cols());
      }
    });
  });
}

void clamped_swiglu_backward(Backend& backend, float limit, TensorView gate, TensorView up,
                             TensorView scales, TensorView d_y, TensorView d_gate, TensorView d_up,
                             TensorView d_scales) {
  check_inputs(limit, gate, up, scales);
  CHECK(cpu::is_float(d_y.dtype) && d_y.shape == gate.shape, d_y.dtype, d_y.shape.to_string());
  check_like(d_gate, gate);
  check_like(d_up, gate);
  CHECK(d_scales.empty() == scales.empty());
  CHECK(d_scales.empty() || (d_scales.dtype == DType::kF32 && d_scales.shape == scales.shape),
        d_scales.dtype, d_scales.shape.to_string());
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float d_scale = cpu::clamped_swiglu_backward_row<V>(
            inputs_of(limit, gate, up, scales, row), d_y.dtype, d_y.row(row), d_gate.row(row),
            d_up.row(row), gate.cols());
        if (!d_scales.empty()) d_scales.f32()[row] = d_scale;
      }
    });
  });
}

}  // namespace strata::ops
