// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
void copy(Backend& backend, TensorView x, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  backend.call()->elementwise.copy(backend, x, y);
}

void fill_zero(Backend& backend, TensorView y) {
  CHECK(y.dense());
  backend.call()->elementwise.fill_zero(backend, y);
}

void fill(Backend& backend, TensorView y, float value) {
  CHECK(y.dtype == DType::kF32 && y.dense(), y.dtype);
  backend.call()->elementwise.fill(backend, y, value);
}

void round_to_bf16_in_place(Backend& backend, TensorView x) {
  CHECK(x.dtype == DType::kF32 && x.dense(), x.dtype);
  backend.call()->elementwise.round_to_bf16_in_place(backend, x);
}

void to_host(Backend& backend, TensorView x, std::span<float> out) {
  CHECK(x.shape.num_elements() == std::ssize(out), x.shape.to_string(), out.size());
  backend.call()->elementwise.to_host(backend, x, out);
}

void from_host(Backend& backend, std::span<const float> values, TensorView y) {
  CHECK(y.shape.num_elements() == std::ssize(values), y.shape.to_string(), values.size());
  backend.call()->elementwise.from_host(backend, stage_list(backend, values), y);
}

void to_host(Backend& backend, IndexView<int32_t> x, std::span<int32_t> out) {
  CHECK(x.size() == std::ssize(out), x.size(), out.size());
  backend.call()->elementwise.indices_to_host(backend, x, out);
}

void to_host(Backend& backend, IndexView<int64_t> x, std::span<int64_t> out) {
  CHECK(x.size() == std::ssize(out), x.size(), out.size());
  backend.call()->elementwise.ends_to_host(backend, x, out);
}

void from_host(Backend& backend, std::span<const int32_t> values, IndexView<int32_t> y) {
  CHECK(y.size() == std::ssize(values), y.size(), values.size());
  backend.call()->elementwise.indices_from_host(backend, stage_list(backend, values), y);
}

void from_host(Backend& backend, std::span<const int64_t> values, IndexView<int64_t> y) {
  CHECK(y.size() == std::ssize(values), y.size(), values.size());
  backend.call()->elementwise.ends_from_host(backend, stage_list(backend, values), y);
}

void copy_bytes(Backend& backend, const void* from, void* to, int64_t bytes) {
  backend.call()->elementwise.copy_bytes(backend, from, to, bytes);
}

void add_into(Backend& backend, TensorView x, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  CHECK(is_float(x.dtype) && y.dtype == DType::kF32, x.dtype, y.dtype);
  backend.call()->elementwise.add_into(backend, x, y);
}

void scale(Backend& backend, TensorView x, float factor, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  CHECK(is_float(x.dtype) && is_float(y.dtype), x.dtype, y.dtype);
  backend.call()->elementwise.scale(backend, x, factor, y);
}

void scale_by(Backend& backend, TensorView x, TensorView factor, TensorView y) {
  CHECK(x.shape == y.shape, x.shape.to_string(), y.shape.to_string());
  CHECK(is_float(x.dtype) && is_float(y.dtype), x.dtype, y.dtype);
  CHECK(factor.dtype == DType::kF32 && factor.shape == Shape{1}, factor.shape.to_string());
  backend.call()->elementwise.scale_by(backend, x, factor, y);
}

void gather(Backend& backend, TensorView x, IndexView<int32_t> rows, TensorView y) {
  CHECK(x.dtype == y.dtype && x.cols() == y.cols() && y.rows() == rows.size(), x.shape.to_string(),
        y.shape.to_string(), rows.size());
  backend.call()->elementwise.gather(backend, x, rows, y);
}

void gather(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y) {
  CHECK(x.dtype == y.dtype && x.cols() == y.cols() && y.rows() == std::ssize(rows),
        x.shape.to_string(), y.shape.to_string(), rows.size());
  backend.call()->elementwise.gather_listed(backend, x, stage_list(backend, rows), y);
}

void gather_sum(Backend& backend, TensorView x, IndexView<int32_t> rows, TensorView add,
                TensorView y) {
  CHECK(is_float(x.dtype) && is_float(y.dtype), x.dtype, y.dtype);
  CHECK(x.cols() == y.cols(), x.shape.to_string(), y.shape.to_string());
  CHECK(add.empty() || (add.dtype == DType::kF32 && add.rows() == y.rows()), add.dtype, add.rows());
  if (y.rows() == 0) return;
  const int64_t each = rows.size() / y.rows();
  CHECK(each >= 1 && each * y.rows() == rows.size(), rows.size(), y.rows());
  backend.call()->elementwise.gather_sum(backend, x, rows, add, y);
}

void gather_columns(Backend& backend, TensorView x, std::span<const int32_t> columns, float factor,
                    TensorView y) {
  CHECK(x.dtype == DType::kF32 && x.dense() && x.shape.rank() == 2, x.dtype, x.shape.to_string());
  CHECK(is_float(y.dtype) && y.dense() && y.shape == (Shape{std::ssize(columns), x.shape[0]}),
        y.shape.to_string(), x.shape.to_string(), columns.size());
  backend.call()->elementwise.gather_columns(backend, x, stage_list(backend, columns), factor, y);
}

void scatter_add_columns(Backend& backend, TensorView x, std::span<const int32_t> columns,
                         TensorView y) {
  CHECK(y.dtype == DType::kF32 && y.dense() && y.shape.rank() == 2, y.dtype, y.shape.to_string());
  CHECK(x.dtype == DType::kF32 && x.dense() && x.shape == (Shape{std::ssize(columns), y.shape[0]}),
        x.shape.to_string(), y.shape.to_string(), columns.size());
  backend.call()->elementwise.scatter_add_columns(backend, x, stage_list(backend, columns), y);
}

void scatter_values(Backend& backend, std::span<const int32_t> rows,
                    std::span<const int32_t> columns, std::span<const float> values, TensorView y) {
  CHECK(rows.size() == values.size() && columns.size() == values.size(), rows.size(),
        columns.size(), values.size());
  CHECK(is_float(y.dtype) && y.shape.rank() == 2, y.dtype, y.shape.to_string());
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(rows[i] >= 0 && rows[i] < y.rows() && columns[i] >= 0 && columns[i] < y.cols(), rows[i],
          columns[i], y.shape.to_string());
  }
  backend.call()->elementwise.scatter_values(backend, stage_list(backend, rows),
                                             stage_list(backend, columns),
                                             stage_list(backend, values), y);
}

void scatter_add(Backend& backend, TensorView x, std::span<const int32_t> rows, TensorView y) {
  CHECK(is_float(x.dtype) && y.dtype == DType::kF32, x.dtype, y.dtype);
  CHECK(x.cols() == y.cols() && x.rows() == std::ssize(rows), x.shape.to_string(),
        y.shape.to_string(), rows.size());
  backend.call()->elementwise.scatter_add(backend, x, stage_list(backend, rows), y);
}

void add_rows_into(Backend& backend, TensorView x, TensorView y) {
  CHECK(is_float(x.dtype) && y.dtype == DType::kF32, x.dtype, y.dtype);
  CHECK(y.shape == Shape{x.cols()}, x.shape.to_string(), y.shape.to_string());
  backend.call()->elementwise.add_rows_into(backend, x, y);
}

double sum_of_squares(Backend& backend, TensorView x) {
  CHECK(is_float(x.dtype), x.dtype);
  return backend.call()->elementwise.sum_of_squares(backend, x);
}

double sum_of_squares(Backend& backend, std::span<const TensorView> x) {
  for (const TensorView& view : x) CHECK(is_float(view.dtype), view.dtype);
  return backend.call()->elementwise.sum_of_squares_list(backend, stage_list(backend, x));
}

}  // namespace strata::ops
