#include "ops/elementwise.h"

#include "ops/checks.h"
#include "ops/cpu/elementwise.h"

namespace strata::ops {
void copy(Backend& backend, TensorView x, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  cpu::copy(backend, x, y);
}

void fill_zero(Backend& backend, TensorView y) {
  CHECK(y.dense());
  cpu::fill_zero(backend, y);
}

void add_into(Backend& backend, TensorView x, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  CHECK(is_float(x.dtype) && y.dtype == DType::kF32, x.dtype, y.dtype);
  cpu::add_into(backend, x, y);
}

void scale(Backend& backend, TensorView x, float factor, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  CHECK(is_float(x.dtype) && is_float(y.dtype), x.dtype, y.dtype);
  cpu::scale(backend, x, factor, y);
}

void gather(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y) {
  CHECK(x.dtype == y.dtype && x.cols() == y.cols() && y.rows() == std::ssize(rows),
        x.shape.to_string(), y.shape.to_string(), rows.size());
  cpu::gather(backend, x, rows, y);
}

void gather_sum(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView add,
                TensorView y) {
  CHECK(is_float(x.dtype) && is_float(y.dtype), x.dtype, y.dtype);
  CHECK(x.cols() == y.cols(), x.shape.to_string(), y.shape.to_string());
  CHECK(add.empty() || (add.dtype == DType::kF32 && add.rows() == y.rows()), add.dtype, add.rows());
  if (y.rows() == 0) return;
  const int64_t each = std::ssize(rows) / y.rows();
  CHECK(each >= 1 && each * y.rows() == std::ssize(rows), rows.size(), y.rows());
  cpu::gather_sum(backend, x, rows, add, y);
}

void scatter_add(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y) {
  CHECK(is_float(x.dtype) && y.dtype == DType::kF32, x.dtype, y.dtype);
  CHECK(x.cols() == y.cols() && x.rows() == std::ssize(rows), x.shape.to_string(),
        y.shape.to_string(), rows.size());
  cpu::scatter_add(backend, x, rows, y);
}

void add_rows_into(Backend& backend, TensorView x, TensorView y) {
  CHECK(is_float(x.dtype) && y.dtype == DType::kF32, x.dtype, y.dtype);
  CHECK(y.shape == Shape{x.cols()}, x.shape.to_string(), y.shape.to_string());
  cpu::add_rows_into(backend, x, y);
}

double sum_of_squares(Backend& backend, TensorView x) {
  CHECK(is_float(x.dtype), x.dtype);
  return cpu::sum_of_squares(backend, x);
}

}  // namespace strata::ops
