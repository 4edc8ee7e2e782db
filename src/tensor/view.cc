// SPDX-License-Identifier: Apache-2.0
#include "tensor/view.h"

namespace strata {

std::string Shape::to_string() const {
  std::string out = "[";
  for (int axis = 0; axis < rank_; ++axis) {
    if (axis > 0) out += ", ";
    out += std::to_string((*this)[axis]);
  }
  return out + "]";
}

TensorView TensorView::slice_rows(int64_t begin, int64_t end) const {
  CHECK(0 <= begin && begin <= end && end <= rows(), begin, end, rows());
  TensorView view(row(begin), dtype, {end - begin, cols()});
  view.row_stride = row_stride;
  return view;
}

TensorView TensorView::slice_cols(int64_t begin, int64_t end) const {
  CHECK(0 <= begin && begin <= end && end <= cols(), begin, end, cols());
  TensorView view(static_cast<char*>(data) + begin * dtype_bytes(dtype), dtype,
                  {rows(), end - begin});
  view.row_stride = row_stride;
  return view;
}

TensorView TensorView::at(int64_t index) const {
  CHECK(shape.rank() > 0 && index >= 0 && index < shape[0], index);
  CHECK(dense());
  Shape inner;
  for (int axis = 1; axis < shape.rank(); ++axis) inner.push_back(shape[axis]);
  return {static_cast<char*>(data) + index * inner.num_elements() * dtype_bytes(dtype), dtype,
          inner};
}

TensorView TensorView::reshape(const Shape& dims) const {
  CHECK(dense() && dims.num_elements() == shape.num_elements());
  return {data, dtype, dims};
}

TensorView TensorView::part(int64_t offset, const Shape& dims) const {
  CHECK(dense() && offset >= 0 && offset + dims.num_elements() <= shape.num_elements(), offset,
        dims.to_string(), shape.to_string());
  return {static_cast<char*>(data) + offset * dtype_bytes(dtype), dtype, dims};
}

}  // namespace strata
