// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/dispatch.h"
#include "ops/elementwise.h"

namespace strata::ops::cpu {
namespace {

char* at(TensorView view, int64_t row, int64_t col) {
  return static_cast<char*>(view.row(row)) + col * dtype_bytes(view.dtype);
}

float load_as_f32(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[i];
    case DType::kBF16:
      return to_float(static_cast<const Bf16*>(data)[i]);
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(data)[i]);
  }
  return 0;
}

void store_from_f32(float value, DType dtype, void* data, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[i] = value;
      return;
    case DType::kBF16:
      static_cast<Bf16*>(data)[i] = to_bf16(value);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[i] = float_to_f16(value);
      return;
  }
}

// f16 is met only when a checkpoint is read or written.
void cast_f16(DType x_type, const void* x, DType y_type, void* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_from_f32(load_as_f32(x_type, x, i), y_type, y, i);
}

void check_indices(const CpuBackend& backend, std::span<const int32_t> list, int64_t limit) {
  if (backend.is_counting()) return;
  for (const int32_t row : list) CHECK(row >= 0 && row < limit, row, limit);
}

}  // namespace

void copy(CpuBackend& backend, TensorView x, TensorView y) {
  const HostAccess access(backend.allocator());
  const bool dense = x.dense() && y.dense();
  const auto each = [&](auto&& piece) {
    parallel_for_pieces(backend, x.rows(), x.cols(), dense,
                        [&](int64_t row, int64_t begin, int64_t end) {
                          piece(at(x, row, begin), at(y, row, begin), end - begin);
                        });
  };
  if (x.dtype == y.dtype) {
    each([&](const char* from, char* to, int64_t n) {
      std::memcpy(to, from, static_cast<size_t>(n * dtype_bytes(x.dtype)));
    });
  } else if (x.dtype == DType::kF16 || y.dtype == DType::kF16) {
    each([&](const char* from, char* to, int64_t n) { cast_f16(x.dtype, from, y.dtype, to, n); });
  } else {
    with_path(backend.path(), [&]<typename V>() {
      each([&](const char* from, char* to, int64_t n) {
        copy_piece<V>(x.dtype, from, y.dtype, to, n);
      });
    });
  }
}

void fill_zero(CpuBackend& backend, TensorView y) {
  const HostAccess access(backend.allocator());
  constexpr int64_t kPiece = 64 << 10;
  char* data = static_cast<char*>(y.data);
  const int64_t bytes = y.num_bytes();
  backend.pool().run((bytes + kPiece - 1) / kPiece, [&](int64_t begin, int64_t end, int) {
    const int64_t last = std::min(end * kPiece, bytes);
    std::memset(data + begin * kPiece, 0, static_cast<size_t>(last - begin * kPiece));
  });
}

void add_into(CpuBackend& backend, TensorView x, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_pieces(backend, x.rows(), x.cols(), x.dense() && y.dense(),
                        [&](int64_t row, int64_t begin, int64_t end) {
                          add_piece<V>(x.dtype, at(x, row, begin),
                                       reinterpret_cast<float*>(at(y, row, begin)), end - begin);
                        });
  });
}

void scale(CpuBackend& backend, TensorView x, float factor, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_pieces(backend, x.rows(), x.cols(), x.dense() && y.dense(),
                        [&](int64_t row, int64_t begin, int64_t end) {
                          scale_piece<V>(x.dtype, at(x, row, begin), factor, y.dtype,
                                         at(y, row, begin), end - begin);
                        });
  });
}

void scale_by(CpuBackend& backend, TensorView x, TensorView factor, TensorView y) {
  float value = 1.0f;
  if (!backend.is_counting()) {
    const HostAccess access(backend.allocator());
    value = *factor.f32();
  }
  scale(backend, x, value, y);
}

void gather(CpuBackend& backend, TensorView x, IndexView<int32_t> rows, TensorView y) {
  gather_listed(backend, x, rows.numbers(), y);
}

void gather_listed(CpuBackend& backend, TensorView x, std::span<const int32_t> rows, TensorView y) {
  const HostAccess access(backend.allocator());
  check_indices(backend, rows, x.rows());
  const auto bytes = static_cast<size_t>(x.cols() * dtype_bytes(x.dtype));
  parallel_for(backend, y.rows(), x.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(y.row(i), x.row(rows[static_cast<size_t>(i)]), bytes);
    }
  });
}

void gather_sum(CpuBackend& backend, TensorView x, IndexView<int32_t> row_numbers, TensorView add,
                TensorView y) {
  const HostAccess access(backend.allocator());
  const std::span<const int32_t> rows = row_numbers.numbers();
  check_indices(backend, rows, x.rows());
  const int64_t each = std::ssize(rows) / y.rows();
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, y.rows(), x.cols() * each, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        gather_sum_row<V>(x.dtype, x.data, x.row_stride, rows.data() + t * each, each,
                          add.empty() ? nullptr : static_cast<const float*>(add.row(t)), y.dtype,
                          y.row(t), x.cols());
      }
    });
  });
}

void scatter_add(CpuBackend& backend, TensorView x, std::span<const int32_t> rows, TensorView y) {
  const HostAccess access(backend.allocator());
  check_indices(backend, rows, y.rows());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_columns(backend, x.rows(), x.cols(), [&](int64_t begin, int64_t end) {
      scatter_add_rows_in_columns<V>(x.dtype, x.data, x.row_stride, rows.data(), x.rows(), y.f32(),
                                     y.row_stride, begin, end);
    });
  });
}

void add_rows_into(CpuBackend& backend, TensorView x, TensorView y) {
  const HostAccess access(backend.allocator());
  with_path(backend.path(), [&]<typename V>() {
    parallel_for_columns(backend, x.rows(), x.cols(), [&](int64_t begin, int64_t end) {
      scatter_add_rows_in_columns<V>(x.dtype, x.data, x.row_stride, nullptr, x.rows(), y.f32(), 0,
                                     begin, end);
    });
  });
}

double sum_of_squares(CpuBackend& backend, TensorView x) { return cpu::add_squares(backend, x, 0); }

namespace {

// Calls body(row, the sum of its squares) for every row.
template <typename Body>
void parallel_for_row_sums_of_squares(CpuBackend& backend, TensorView x, Body&& body) {
  with_path(backend.path(), [&]<typename V>() {
    parallel_for(backend, x.rows(), x.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        body(row, sum_of_squares_piece<V>(x.dtype, at(x, row, 0), x.cols()));
      }
    });
  });
}

}  // namespace

// A thread that is alone meets the rows in order.
double add_squares(CpuBackend& backend, TensorView x, double total) {
  const HostAccess access(backend.allocator());
  const int64_t rows = x.rows();
  if (rows == 0 || x.cols() == 0) return total;
  Scratch::Mark mark(backend.scratch());
  if (backend.pool().num_threads() == 1) {
    if (backend.is_counting()) return 0;
    parallel_for_row_sums_of_squares(backend, x, [&](int64_t, double sum) { total += sum; });
    return total;
  }
  auto* sums =
      static_cast<double*>(backend.scratch().take(rows * static_cast<int64_t>(sizeof(double))));
  if (backend.is_counting()) return 0;
  parallel_for_row_sums_of_squares(backend, x, [&](int64_t row, double sum) { sums[row] = sum; });
  for (int64_t row = 0; row < rows; ++row) total += sums[row];
  return total;
}

double sum_of_squares_list(CpuBackend& backend, std::span<const TensorView> x) {
  constexpr int64_t kSmall = 1 << 17;
  const HostAccess access(backend.allocator());
  const Scratch::Mark mark(backend.scratch());
  auto* sums = static_cast<double*>(
      backend.scratch().take(std::ssize(x) * static_cast<int64_t>(sizeof(double))));
  const auto is_small = [&](size_t i) { return x[i].shape.num_elements() <= kSmall; };
  for (size_t i = 0; i < x.size(); ++i) {
    if (!is_small(i) && !backend.is_counting()) sums[i] = cpu::sum_of_squares(backend, x[i]);
  }
  backend.run_in_workers(std::ssize(x), [&](int64_t item, CpuBackend& worker) {
    const auto i = static_cast<size_t>(item);
    if (is_small(i) && !worker.is_counting()) sums[i] = cpu::sum_of_squares(worker, x[i]);
  });
  if (backend.is_counting()) return 0;
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) total += sums[i];
  return total;
}

void fill(CpuBackend& backend, TensorView y, float value) {
  const HostAccess access(backend.allocator());
  parallel_for_pieces(backend, 1, y.shape.num_elements(), /*dense=*/true,
                      [&](int64_t, int64_t begin, int64_t end) {
                        std::fill(y.f32() + begin, y.f32() + end, value);
                      });
}

void round_to_bf16_in_place(CpuBackend& backend, TensorView x) {
  const HostAccess access(backend.allocator());
  parallel_for_pieces(backend, 1, x.shape.num_elements(), /*dense=*/true,
                      [&](int64_t, int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i)
                          x.f32()[i] = round_to_bf16(x.f32()[i]);
                      });
}

void copy_bytes(CpuBackend& backend, const void* from, void* to, int64_t bytes) {
  if (backend.is_counting() || bytes == 0) return;
  const HostAccess access(backend.allocator());
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The host's memory is the CPU's.
void to_host(CpuBackend& backend, TensorView x, std::span<float> out) {
  copy(backend, x, TensorView(out.data(), DType::kF32, x.shape));
}

void from_host(CpuBackend& backend, std::span<const float> values, TensorView y) {
  copy(backend, TensorView(const_cast<float*>(values.data()), DType::kF32, y.shape), y);
}

void indices_to_host(CpuBackend& backend, IndexView<int32_t> x, std::span<int32_t> out) {
  copy_bytes(backend, x.data(), out.data(), x.num_bytes());
}

void ends_to_host(CpuBackend& backend, IndexView<int64_t> x, std::span<int64_t> out) {
  copy_bytes(backend, x.data(), out.data(), x.num_bytes());
}

void indices_from_host(CpuBackend& backend, std::span<const int32_t> values, IndexView<int32_t> y) {
  copy_bytes(backend, values.data(), y.data(), y.num_bytes());
}

void ends_from_host(CpuBackend& backend, std::span<const int64_t> values, IndexView<int64_t> y) {
  copy_bytes(backend, values.data(), y.data(), y.num_bytes());
}

namespace {

// Row `to` of y = factor times column `from` of x.
void write_column_as_row(TensorView x, int64_t from, float factor, TensorView y, int64_t to) {
  const int64_t rank = x.shape[0];
  const float* column = x.f32() + from;
  for (int64_t j = 0; j < rank; ++j) {
    const float value = column[j * x.cols()];
    if (y.dtype == DType::kF32) {
      y.f32()[to * rank + j] = factor * value;
    } else {
      y.bf16()[to * rank + j] = to_bf16(factor * round_to_bf16(value));
    }
  }
}

}  // namespace

void gather_columns(CpuBackend& backend, TensorView x, std::span<const int32_t> columns,
                    float factor, TensorView y) {
  const HostAccess access(backend.allocator());
  check_indices(backend, columns, x.cols());
  parallel_for(backend, y.rows(), x.shape[0], [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      write_column_as_row(x, columns[static_cast<size_t>(i)], factor, y, i);
    }
  });
}

void scatter_add_columns(CpuBackend& backend, TensorView x, std::span<const int32_t> columns,
                         TensorView y) {
  const HostAccess access(backend.allocator());
  check_indices(backend, columns, y.cols());
  const int64_t rank = y.shape[0];
  parallel_for(backend, rank, x.rows(), [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < x.rows(); ++i) {
      float* column = y.f32() + columns[static_cast<size_t>(i)];
      for (int64_t j = begin; j < end; ++j) column[j * y.cols()] += x.f32()[i * rank + j];
    }
  });
}

void scatter_values(CpuBackend& backend, std::span<const int32_t> rows,
                    std::span<const int32_t> columns, std::span<const float> values, TensorView y) {
  if (backend.is_counting()) return;
  const HostAccess access(backend.allocator());
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t at = rows[i] * y.row_stride + columns[i];
    if (y.dtype == DType::kF32) {
      y.f32()[at] = values[i];
    } else {
      y.bf16()[at] = to_bf16(values[i]);
    }
  }
}

}  // namespace strata::ops::cpu
