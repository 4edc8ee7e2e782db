// SPDX-License-Identifier: Apache-2.0
// TensorView: a borrowed, typed block of memory with a shape; it owns nothing and is passed by
// value. Rank 0..5; the last axis is contiguous; rows (all axes but the last) are `row_stride`
// elements apart, which is the width of a dense tensor unless the view is a column slice. An empty
// view (no data, no elements) stands for "not wanted".
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace strata {

constexpr int kMaxRank = 5;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    CHECK(rank_ <= kMaxRank, rank_);
    int axis = 0;
    for (const int64_t dim : dims) dims_[static_cast<size_t>(axis++)] = dim;
  }
  void push_back(int64_t dim) {
    CHECK(rank_ < kMaxRank, rank_);
    dims_[static_cast<size_t>(rank_++)] = dim;
  }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int64_t operator[](int axis) const {
    DCHECK(axis >= 0 && axis < rank_, axis, rank_);
    return dims_[static_cast<size_t>(axis)];
  }
  [[nodiscard]] int64_t num_elements() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank_; ++axis) count *= dims_[static_cast<size_t>(axis)];
    return count;
  }
  friend bool operator==(const Shape&, const Shape&) = default;
  [[nodiscard]] std::string to_string() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  int64_t row_stride = 0;  // elements between rows; == last dim when dense

  TensorView() = default;
  TensorView(void* memory, DType type, const Shape& dims)
      : data(memory),
        dtype(type),
        shape(dims),
        row_stride(dims.rank() > 0 ? dims[dims.rank() - 1] : 1) {}

  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] int64_t cols() const { return shape.rank() > 0 ? shape[shape.rank() - 1] : 1; }
  // All axes but the last, flattened.
  [[nodiscard]] int64_t rows() const { return cols() == 0 ? 0 : shape.num_elements() / cols(); }
  [[nodiscard]] bool dense() const { return row_stride == cols(); }
  [[nodiscard]] int64_t num_bytes() const { return shape.num_elements() * dtype_bytes(dtype); }

  // Typed pointers; the type must be the view's.
  [[nodiscard]] float* f32() const {
    DCHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  [[nodiscard]] Bf16* bf16() const {
    DCHECK(dtype == DType::kBF16);
    return static_cast<Bf16*>(data);
  }
  // Row `index` of the flattened [rows, cols] view.
  [[nodiscard]] void* row(int64_t index) const {
    return static_cast<char*>(data) + index * row_stride * dtype_bytes(dtype);
  }
  // Rows [begin, end) as a [end - begin, cols] view.
  [[nodiscard]] TensorView slice_rows(int64_t begin, int64_t end) const;
  // Columns [begin, end) of every row, as [rows, end - begin].
  [[nodiscard]] TensorView slice_cols(int64_t begin, int64_t end) const;
  // Entry `index` of the first axis, one rank less; dense views only.
  [[nodiscard]] TensorView at(int64_t index) const;
  // The same elements under another shape; dense views only.
  [[nodiscard]] TensorView reshape(const Shape& dims) const;
  // Elements from `offset` on under a shape of their own; dense views only.
  [[nodiscard]] TensorView part(int64_t offset, const Shape& dims) const;
};

}  // namespace strata
