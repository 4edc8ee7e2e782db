#include "server/protocol/tensor.h"

#include <fmt/format.h>
#include <server/protocol/tinker.pb.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <functional>

#include "base/error.h"

namespace strata::server {
namespace {

static_assert(std::endian::native == std::endian::little);

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, where + ": " + what);
}

template <typename T>
std::vector<T> unpack(const std::string& bytes, const std::string& where, const char* what) {
  if (bytes.size() % sizeof(T) != 0) {
    fail(where, fmt::format("{} has {} bytes, no multiple of {}", what, bytes.size(), sizeof(T)));
  }
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

const char* dtype_name(tinker_public::DType dtype) {
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
  if (parts.shape.size() != 2) fail(where, "a CSR tensor needs a shape of two dimensions");
  const int64_t rows = parts.shape[0];
  if (static_cast<int64_t>(parts.crow.size()) != rows + 1) {
    fail(where, fmt::format("CSR crow_indices has {} entries, wanted rows + 1 = {}",
                            parts.crow.size(), rows + 1));
  }
  if (static_cast<int64_t>(parts.col.size()) != num_values) {
    fail(where, fmt::format("CSR has {} col_indices and {} values", parts.col.size(), num_values));
  }
  if (parts.crow.front() != 0 || parts.crow.back() != num_values) {
    fail(where, fmt::format("CSR crow_indices runs from {} to {}, wanted 0 to {}",
                            parts.crow.front(), parts.crow.back(), num_values));
  }
  for (size_t row = 0; row + 1 < parts.crow.size(); ++row) {
    if (parts.crow[row] > parts.crow[row + 1]) {
      fail(where, fmt::format("CSR crow_indices decreases after row {}", row));
    }
  }
}

// Columns of a row may come in any order, but each once.
void check_distinct(const TensorLayout& layout, const std::string& where) {
  const std::vector<int64_t>& at = layout.positions;
  if (std::adjacent_find(at.begin(), at.end(), std::greater_equal<>()) == at.end()) return;
  std::vector<int64_t> sorted = at;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    fail(where, fmt::format("CSR names column {} of row {} twice", *twice % layout.num_columns,
                            *twice / layout.num_columns));
  }
}

template <typename T, typename Out>
Out spread(const TensorLayout& layout, const std::vector<T>& values) {
  Out out;
  out.num_rows = layout.num_rows;
  out.num_columns = layout.num_columns;
  out.values.assign(static_cast<size_t>(layout.num_elements()), {});
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = layout.positions.empty() ? i : static_cast<size_t>(layout.positions[i]);
    out.values[at] = values[i];
  }
  return out;
}

TensorParts parts_of(const tinker_public::Tensor& tensor, const std::string& where) {
  TensorParts parts;
  parts.shape.assign(tensor.shape().begin(), tensor.shape().end());
  if (tensor.has_sparse_csr()) {
    parts.is_sparse = true;
    parts.crow = unpack<int64_t>(tensor.sparse_csr().crow_indices(), where, "crow_indices");
    parts.col = unpack<int64_t>(tensor.sparse_csr().col_indices(), where, "col_indices");
  }
  return parts;
}

const std::string& values_of(const tinker_public::Tensor& tensor) {
  return tensor.has_sparse_csr() ? tensor.sparse_csr().values() : tensor.dense();
}

void want(const tinker_public::Tensor& tensor, tinker_public::DType dtype,
          const std::string& where) {
  if (tensor.encoding_case() == tinker_public::Tensor::ENCODING_NOT_SET) {
    fail(where, "the tensor has neither dense nor sparse data");
  }
  if (tensor.dtype() != dtype) {
    fail(where,
         fmt::format("dtype is {}, wanted {}", dtype_name(tensor.dtype()), dtype_name(dtype)));
  }
}

}  // namespace

TensorLayout tensor_layout(const TensorParts& parts, int64_t num_values, const std::string& where,
                           const TensorLimits& limits) {
  TensorLayout layout;
  if (parts.shape.size() > 2) {
    fail(where, fmt::format("has {} dimensions, wanted one or two", parts.shape.size()));
  }
  for (const int64_t dim : parts.shape) {
    if (dim < 0 || dim > INT32_MAX) fail(where, fmt::format("a dimension is {}", dim));
  }
  layout.num_rows = parts.shape.empty() ? num_values : parts.shape[0];
  layout.num_columns = parts.shape.size() == 2 ? parts.shape[1] : 0;
  if (parts.shape.size() == 2 && layout.num_columns == 0) fail(where, "the last dimension is 0");
  if (!parts.is_sparse && layout.num_elements() != num_values) {
    fail(where,
         fmt::format("holds {} values, its shape wants {}", num_values, layout.num_elements()));
  }
  if (layout.num_rows > limits.rows) {
    fail(where, fmt::format("has {} rows, there are {} tokens", layout.num_rows, limits.rows));
  }
  if (layout.num_columns > limits.columns) {
    fail(where, fmt::format("has {} columns, the limit is {}", layout.num_columns, limits.columns));
  }
  if (layout.num_elements() > limits.elements) {
    fail(where,
         fmt::format("has {} elements, {} are left of what the loss inputs of one request "
                     "may hold in dense form (--max-body); send the data in several requests",
                     layout.num_elements(), limits.elements));
  }
  if (!parts.is_sparse) return layout;
  check_csr(parts, num_values, where);
  layout.positions.reserve(parts.col.size());
  for (size_t row = 0; row + 1 < parts.crow.size(); ++row) {
    for (int64_t i = parts.crow[row]; i < parts.crow[row + 1]; ++i) {
      const int64_t col = parts.col[static_cast<size_t>(i)];
      if (col < 0 || col >= layout.num_columns) {
        fail(where, fmt::format("CSR column {} of row {} is outside 0 to {}", col, row,
                                layout.num_columns - 1));
      }
      layout.positions.push_back(static_cast<int64_t>(row) * layout.num_columns + col);
    }
  }
  check_distinct(layout, where);
  return layout;
}

IntTensor read_int_tensor(const tinker_public::Tensor& tensor, const std::string& where,
                          const TensorLimits& limits) {
  want(tensor, tinker_public::DTYPE_INT64, where);
  const auto wide = unpack<int64_t>(values_of(tensor), where, "the data");
  std::vector<int32_t> values;
  values.reserve(wide.size());
  for (const int64_t value : wide) {
    if (value < INT32_MIN || value > INT32_MAX)
      fail(where, fmt::format("value {} is no id", value));
    values.push_back(static_cast<int32_t>(value));
  }
  const TensorLayout layout =
      tensor_layout(parts_of(tensor, where), static_cast<int64_t>(values.size()), where, limits);
  return spread<int32_t, IntTensor>(layout, values);
}

FloatTensor read_float_tensor(const tinker_public::Tensor& tensor, const std::string& where,
                              const TensorLimits& limits) {
  want(tensor, tinker_public::DTYPE_FLOAT32, where);
  const auto values = unpack<float>(values_of(tensor), where, "the data");
  const TensorLayout layout =
      tensor_layout(parts_of(tensor, where), static_cast<int64_t>(values.size()), where, limits);
  return spread<float, FloatTensor>(layout, values);
}

}  // namespace strata::server
