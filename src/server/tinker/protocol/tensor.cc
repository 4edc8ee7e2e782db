// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/protocol/tensor.h"

#include <fmt/format.h>
#include <server/tinker/protocol/tinker.pb.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <functional>

#include "base/error.h"

namespace strata::server {

void fail_data(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, where + ": " + what);
}

namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
PackedValues<T> checked_packed_view(std::string_view bytes, const std::string& where,
                                    const char* what) {
  if (bytes.size() % sizeof(T) != 0) {
    fail_data(where,
              fmt::format("{} has {} bytes, no multiple of {}", what, bytes.size(), sizeof(T)));
  }
  return PackedValues<T>(bytes);
}

std::vector<int64_t> unpack_indices(std::string_view bytes, const std::string& where,
                                    const char* what) {
  const auto values = checked_packed_view<int64_t>(bytes, where, what);
  std::vector<int64_t> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = values[i];
  return out;
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case tinker_public::DTYPE_FLOAT32:
      return "float32";
    case tinker_public::DTYPE_INT64:
      return "int64";
    case tinker_public::DTYPE_INT32:
      return "int32";
    case tinker_public::DTYPE_BFLOAT16:
      return "bfloat16";
    default:
      return "unspecified";
  }
}

void check_csr(const TensorParts& parts, int64_t num_values, const std::string& where) {
  if (parts.shape.size() != 2) fail_data(where, "a CSR tensor needs a shape of two dimensions");
  const int64_t rows = parts.shape[0];
  if (static_cast<int64_t>(parts.crow.size()) != rows + 1) {
    fail_data(where, fmt::format("CSR crow_indices has {} entries, wanted rows + 1 = {}",
                                 parts.crow.size(), rows + 1));
  }
  if (static_cast<int64_t>(parts.col.size()) != num_values) {
    fail_data(where,
              fmt::format("CSR has {} col_indices and {} values", parts.col.size(), num_values));
  }
  if (parts.crow.front() != 0 || parts.crow.back() != num_values) {
    fail_data(where, fmt::format("CSR crow_indices runs from {} to {}, wanted 0 to {}",
                                 parts.crow.front(), parts.crow.back(), num_values));
  }
  for (size_t row = 0; row + 1 < parts.crow.size(); ++row) {
    if (parts.crow[row] > parts.crow[row + 1]) {
      fail_data(where, fmt::format("CSR crow_indices decreases after row {}", row));
    }
  }
}

// In the dense form, of a tensor that check_csr() has let through.
std::vector<int64_t> csr_positions(const TensorParts& parts, int64_t num_columns,
                                   const std::string& where) {
  std::vector<int64_t> positions;
  positions.reserve(parts.col.size());
  for (size_t row = 0; row + 1 < parts.crow.size(); ++row) {
    for (int64_t i = parts.crow[row]; i < parts.crow[row + 1]; ++i) {
      const int64_t col = parts.col[static_cast<size_t>(i)];
      if (col < 0 || col >= num_columns) {
        fail_data(where, fmt::format("CSR column {} of row {} is outside 0 to {}", col, row,
                                     num_columns - 1));
      }
      positions.push_back(static_cast<int64_t>(row) * num_columns + col);
    }
  }
  return positions;
}

void check_dimensions(const std::vector<int64_t>& shape, const std::string& where) {
  if (shape.size() > 2)
    fail_data(where, fmt::format("has {} dimensions, wanted one or two", shape.size()));
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > INT32_MAX) fail_data(where, fmt::format("a dimension is {}", dim));
  }
}

// In order, of one or two dimensions; a flat one has as many rows as values.
TensorLayout layout_of_shape(const std::vector<int64_t>& shape, int64_t num_values) {
  TensorLayout layout;
  layout.num_rows = shape.empty() ? num_values : shape[0];
  layout.num_columns = shape.size() == 2 ? shape[1] : 0;
  return layout;
}

void check_fills_shape(const TensorLayout& layout, int64_t num_values, const std::string& where) {
  if (layout.num_elements() == num_values) return;
  fail_data(where,
            fmt::format("holds {} values, its shape wants {}", num_values, layout.num_elements()));
}

void check_within(const TensorLimits& limits, const TensorLayout& layout,
                  const std::string& where) {
  if (layout.num_rows > limits.rows) {
    fail_data(where, fmt::format("has {} rows, there are {} tokens", layout.num_rows, limits.rows));
  }
  if (layout.num_columns > limits.columns) {
    fail_data(where,
              fmt::format("has {} columns, the limit is {}", layout.num_columns, limits.columns));
  }
  if (layout.num_elements() > limits.elements) {
    fail_data(where,
              fmt::format("has {} elements, {} are left of what the loss inputs of one request "
                          "may hold in dense form (--max-body); send the data in several requests",
                          layout.num_elements(), limits.elements));
  }
}

// Columns of a row may come in any order, but each once.
void check_distinct_positions(const TensorLayout& layout, const std::string& where) {
  const std::vector<int64_t>& at = layout.positions;
  if (std::adjacent_find(at.begin(), at.end(), std::greater_equal<>()) == at.end()) return;
  std::vector<int64_t> sorted = at;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    fail_data(where, fmt::format("CSR names column {} of row {} twice", *twice % layout.num_columns,
                                 *twice / layout.num_columns));
  }
}

TensorParts unpack_tensor_parts(const TensorMessage& tensor, const std::string& where) {
  TensorParts parts;
  parts.shape = tensor.shape;
  if (tensor.form == TensorMessage::Form::kSparse) {
    parts.is_sparse = true;
    parts.crow = unpack_indices(tensor.crow, where, "crow_indices");
    parts.col = unpack_indices(tensor.col, where, "col_indices");
  }
  return parts;
}

void check_dtype(const TensorMessage& tensor, tinker_public::DType dtype,
                 const std::string& where) {
  if (tensor.form == TensorMessage::Form::kNone) {
    fail_data(where, "the tensor has neither dense nor sparse data");
  }
  if (tensor.dtype != dtype) {
    fail_data(where,
              fmt::format("dtype is {}, wanted {}", dtype_name(tensor.dtype), dtype_name(dtype)));
  }
}

// The dense form, each value from where it is on the wire to where it is read.
template <typename T, typename Out, typename Convert>
Out read_dense(const TensorMessage& tensor, const std::string& where, const TensorLimits& limits,
               const Convert& convert) {
  const auto values = checked_packed_view<T>(tensor.values, where, "the data");
  const TensorLayout layout = checked_tensor_layout(
      unpack_tensor_parts(tensor, where), static_cast<int64_t>(values.size()), where, limits);
  Out out;
  out.num_rows = layout.num_rows;
  out.num_columns = layout.num_columns;
  out.values.assign(static_cast<size_t>(layout.num_elements()), {});
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = layout.positions.empty() ? i : static_cast<size_t>(layout.positions[i]);
    out.values[at] = convert(values[i]);
  }
  return out;
}

}  // namespace

TensorLayout checked_tensor_layout(const TensorParts& parts, int64_t num_values,
                                   const std::string& where, const TensorLimits& limits) {
  check_dimensions(parts.shape, where);
  TensorLayout layout = layout_of_shape(parts.shape, num_values);
  if (parts.shape.size() == 2 && layout.num_columns == 0)
    fail_data(where, "the last dimension is 0");
  if (!parts.is_sparse) check_fills_shape(layout, num_values, where);
  check_within(limits, layout, where);
  if (!parts.is_sparse) return layout;
  check_csr(parts, num_values, where);
  layout.positions = csr_positions(parts, layout.num_columns, where);
  check_distinct_positions(layout, where);
  return layout;
}

IntTensor read_int_tensor(const TensorMessage& tensor, const std::string& where,
                          const TensorLimits& limits) {
  check_dtype(tensor, tinker_public::DTYPE_INT64, where);
  return read_dense<int64_t, IntTensor>(tensor, where, limits, [&](int64_t value) {
    if (value < INT32_MIN || value > INT32_MAX)
      fail_data(where, fmt::format("value {} is no id", value));
    return static_cast<int32_t>(value);
  });
}

FloatTensor read_float_tensor(const TensorMessage& tensor, const std::string& where,
                              const TensorLimits& limits) {
  check_dtype(tensor, tinker_public::DTYPE_FLOAT32, where);
  return read_dense<float, FloatTensor>(tensor, where, limits, [](float value) { return value; });
}

}  // namespace strata::server
