// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gated.h"

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

char* at(TensorView view, int64_t row, int64_t col) {
  return static_cast<char*>(view.row(row)) + col * dtype_bytes(view.dtype);
}

// Columns of a row, from `col` on.
GatedInputs inputs_at(Activation activation, TensorView gate, TensorView up, float scale,
                      int64_t row, int64_t col) {
  return {.activation = activation,
          .type = gate.dtype,
          .gate = at(gate, row, col),
          .up = at(up, row, col),
          .scale = scale};
}

}  // namespace

void act_and_mul(CpuBackend& backend, Activation activation, TensorView gate, TensorView up,
                 TensorView y) {
  const HostAccess access(backend.allocator());
  const bool dense = gate.dense() && up.dense() && y.dense();
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_pieces(backend, gate.rows(), gate.cols(), dense,
                        [&](int64_t row, int64_t begin, int64_t end) {
                          act_and_mul_piece<V>(inputs_at(activation, gate, up, 1.0f, row, begin),
                                               at(y, row, begin), end - begin);
                        });
  });
}

void act_and_mul_backward(CpuBackend& backend, Activation activation, TensorView gate,
                          TensorView up, TensorView d_y, TensorView d_gate, TensorView d_up) {
  const HostAccess access(backend.allocator());
  const bool dense = gate.dense() && up.dense() && d_y.dense() && d_gate.dense() && d_up.dense();
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_pieces(
        backend, gate.rows(), gate.cols(), dense, [&](int64_t row, int64_t begin, int64_t end) {
          act_and_mul_backward_piece<V>(inputs_at(activation, gate, up, 1.0f, row, begin),
                                        d_y.dtype, at(d_y, row, begin), at(d_gate, row, begin),
                                        at(d_up, row, begin), end - begin);
        });
  });
}

void scaled_act_and_mul(CpuBackend& backend, Activation activation, TensorView gate, TensorView up,
                        TensorView scales, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        act_and_mul_piece<V>(inputs_at(activation, gate, up, scales.f32()[row], row, 0), y.row(row),
                             gate.cols());
      }
    });
  });
}

void scaled_act_and_mul_backward(CpuBackend& backend, Activation activation, TensorView gate,
                                 TensorView up, TensorView scales, TensorView d_y,
                                 TensorView d_gate, TensorView d_up, TensorView d_scales) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const GatedInputs in = inputs_at(activation, gate, up, scales.f32()[row], row, 0);
        d_scales.f32()[row] = act_and_mul_dot_piece<V>(in, d_y.dtype, d_y.row(row), gate.cols());
        act_and_mul_backward_piece<V>(in, d_y.dtype, d_y.row(row), d_gate.row(row), d_up.row(row),
                                      gate.cols());
      }
    });
  });
}

}  // namespace strata::ops::cpu
