// SPDX-License-Identifier: Apache-2.0
// PanelView: a matrix [rows, cols] (outputs, inputs) stored in panels of `width` outputs, the one
// layout of weights that products read. f32: [panels][cols][width]; bf16:
// [panels][pairs][width][2], pair p holding inputs 2p and 2p + 1. Rows and the odd input are padded
// with zeros. Borrows its memory, which is aligned to 64 bytes. Accepted by Gemm, embedding gather
// and pack only (ops/).
#pragma once
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace strata {

struct PanelView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t width = 1;  // outputs in a panel

  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] int64_t num_panels() const { return (rows + width - 1) / width; }
  [[nodiscard]] int64_t padded_cols() const {
    return dtype == DType::kF32 ? cols : (cols + 1) / 2 * 2;
  }
  [[nodiscard]] int64_t panel_elements() const { return padded_cols() * width; }
  [[nodiscard]] int64_t num_bytes() const {
    return num_panels() * panel_elements() * dtype_bytes(dtype);
  }
  [[nodiscard]] void* panel(int64_t index) const {
    return static_cast<char*>(data) + index * panel_elements() * dtype_bytes(dtype);
  }
  // Offset in elements of (row, col) from `data`.
  [[nodiscard]] int64_t offset(int64_t row, int64_t col) const {
    const int64_t base = row / width * panel_elements();
    const int64_t lane = row % width;
    if (dtype == DType::kF32) return base + col * width + lane;
    return base + (col / 2 * width + lane) * 2 + col % 2;
  }
};

// Bytes of a panel matrix, before there is memory for it.
inline int64_t panel_bytes(DType dtype, int64_t rows, int64_t cols, int64_t width) {
  return PanelView{.data = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .width = width}
      .num_bytes();
}

}  // namespace strata
