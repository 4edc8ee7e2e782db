// SPDX-License-Identifier: Apache-2.0
// Tensors of a datum's loss inputs: dense or CSR on the wire, dense and of a known type here.
// Faults are Errors that name the datum and the input; nothing is allocated from a declared size
// alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "server/tinker/protocol/data_message.h"

namespace strata::server {

// Throws Error: of a request's data.
[[noreturn]] void fail_data(const std::string& where, const std::string& what);

// The bytes field of an array: little-endian, without gaps.
template <typename T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// [N], or [N, K] row-major when num_columns > 0.
struct IntTensor {
  std::vector<int32_t> values;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
};
struct FloatTensor {
  std::vector<float> values;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
};

// What the dense form of a tensor may have at most; all below 2^31.
struct TensorLimits {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t elements = 0;
};

// `where` like "datum 3: target_tokens". Values of int64 tensors must fit 32 bits.
IntTensor read_int_tensor(const TensorMessage& tensor, const std::string& where,
                          const TensorLimits& limits);
FloatTensor read_float_tensor(const TensorMessage& tensor, const std::string& where,
                              const TensorLimits& limits);

// A dense or CSR tensor as plain parts. A CSR row names each column at most once, in any order.
struct TensorParts {
  std::vector<int64_t> shape;  // empty: flat
  bool is_sparse = false;
  std::vector<int64_t> crow, col;
};
// Where value i of `num_values` goes in the dense form, and that form's shape.
struct TensorLayout {
  int64_t num_rows = 0;
  int64_t num_columns = 0;         // 0: 1-D
  std::vector<int64_t> positions;  // empty: dense, in order
  [[nodiscard]] int64_t num_elements() const {
    return num_columns > 0 ? num_rows * num_columns : num_rows;
  }
};
TensorLayout checked_tensor_layout(const TensorParts& parts, int64_t num_values,
                                   const std::string& where, const TensorLimits& limits);

}  // namespace strata::server
