#include "ops/gated.h"

#include "ops/cpu/dispatch.h"
#include "ops/cpu/gated.h"

namespace strata::ops {
namespace {

char* at(TensorView view, int64_t row, int64_t col) {
  return static_cast<char*>(view.row(row)) + col * dtype_bytes(view.dtype);
}

void check_like(TensorView view, TensorView gate) {
  CHECK(view.dtype == gate.dtype && view.shape == gate.shape, view.dtype, gate.dtype,
        view.shape.to_string(), gate.shape.to_string());
}

void check_scales(TensorView scales, TensorView gate) {
  CHECK(scales.dtype == DType::kF32 && scales.shape == Shape{gate.rows()}, scales.dtype,
        scales.shape.to_string(), gate.rows());
}

// Columns of a row, from `col` on.
cpu::GatedInputs inputs_at(Activation activation, TensorView gate, TensorView up, float scale,
                           int64_t row, int64_t col) {
  return {.activation = activation,
          .type = gate.dtype,
          .gate = at(gate, row, col),
          .up = at(up, row, col),
          .scale = scale};
}

}  // namespace

void gated(Backend& backend, Activation activation, TensorView gate, TensorView up, TensorView y) {
  CHECK(cpu::is_float(gate.dtype), gate.dtype);
  check_like(up, gate);
  check_like(y, gate);
  const bool dense = gate.dense() && up.dense() && y.dense();
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_pieces(backend, gate.rows(), gate.cols(), dense,
                    [&](int64_t row, int64_t begin, int64_t end) {
                      cpu::gated_piece<V>(inputs_at(activation, gate, up, 1.0f, row, begin),
                                          at(y, row, begin), end - begin);
                    });
  });
}

void gated_backward(Backend& backend, Activation activation, TensorView gate, TensorView up,
                    TensorView d_y, TensorView d_gate, TensorView d_up) {
  CHECK(cpu::is_float(gate.dtype) && cpu::is_float(d_y.dtype), gate.dtype, d_y.dtype);
  CHECK(d_y.shape == gate.shape, d_y.shape.to_string(), gate.shape.to_string());
  check_like(up, gate);
  check_like(d_gate, gate);
  check_like(d_up, gate);
  const bool dense = gate.dense() && up.dense() && d_y.dense() && d_gate.dense() && d_up.dense();
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_pieces(
        backend, gate.rows(), gate.cols(), dense, [&](int64_t row, int64_t begin, int64_t end) {
          cpu::gated_backward_piece<V>(inputs_at(activation, gate, up, 1.0f, row, begin), d_y.dtype,
                                       at(d_y, row, begin), at(d_gate, row, begin),
                                       at(d_up, row, begin), end - begin);
        });
  });
}

void gated_rows(Backend& backend, Activation activation, TensorView gate, TensorView up,
                TensorView scales, TensorView y) {
  CHECK(cpu::is_float(gate.dtype), gate.dtype);
  check_like(up, gate);
  check_like(y, gate);
  check_scales(scales, gate);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        cpu::gated_piece<V>(inputs_at(activation, gate, up, scales.f32()[row], row, 0), y.row(row),
                            gate.cols());
      }
    });
  });
}

void gated_rows_backward(Backend& backend, Activation activation, TensorView gate, TensorView up,
                         TensorView scales, TensorView d_y, TensorView d_gate, TensorView d_up,
                         TensorView d_scales) {
  CHECK(cpu::is_float(gate.dtype) && cpu::is_float(d_y.dtype), gate.dtype, d_y.dtype);
  CHECK(d_y.shape == gate.shape, d_y.shape.to_string(), gate.shape.to_string());
  check_like(up, gate);
  check_like(d_gate, gate);
  check_like(d_up, gate);
  check_scales(scales, gate);
  check_scales(d_scales, gate);
  cpu::with_path(backend.path(), [&]<typename V>() {
    cpu::for_range(backend, gate.rows(), gate.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const cpu::GatedInputs in = inputs_at(activation, gate, up, scales.f32()[row], row, 0);
        d_scales.f32()[row] = cpu::gated_dot_piece<V>(in, d_y.dtype, d_y.row(row), gate.cols());
        cpu::gated_backward_piece<V>(in, d_y.dtype, d_y.row(row), d_gate.row(row), d_up.row(row),
                                     gate.cols());
      }
    });
  });
}

}  // namespace strata::ops
