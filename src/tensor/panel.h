// SPDX-License-Identifier: Apache-2.0
// PanelView: a matrix [rows, cols] (outputs, inputs) stored in panels of `width` outputs, the one
// layout of weights that products read. f32: [panels][cols][width]; bf16:
// [panels][pairs][width][2], pair p holding inputs 2p and 2p + 1. Rows and the odd input are padded
// with zeros; or in one of the forms of few bits (tensor/narrow.h), whose values are bf16. Borrows
// its memory, which is aligned to 64 bytes. Accepted by Gemm, embedding gather and pack only
// (ops/).
#pragma once
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/narrow.h"
#include "tensor/view.h"

namespace strata {

struct PanelView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t width = 1;  // outputs in a panel
  // Not kNone: how the values, whose dtype is kBF16, are stored; cols are a multiple of 32.
  NarrowForm form = NarrowForm::kNone;

  [[nodiscard]] bool is_narrow() const { return form != NarrowForm::kNone; }
  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] int64_t num_panels() const { return (rows + width - 1) / width; }
  [[nodiscard]] int64_t padded_cols() const {
    return dtype == DType::kF32 ? cols : (cols + 1) / 2 * 2;
  }
  [[nodiscard]] int64_t panel_elements() const { return padded_cols() * width; }
  // Bytes of one panel.
  [[nodiscard]] int64_t panel_bytes() const {
    return is_narrow() ? narrow_layout(form).panel_bytes(cols, width)
                       : panel_elements() * dtype_bytes(dtype);
  }
  [[nodiscard]] int64_t num_bytes() const { return num_panels() * panel_bytes(); }
  [[nodiscard]] void* panel(int64_t index) const {
    return static_cast<char*>(data) + index * panel_bytes();
  }
  // Rows [begin, end) as a matrix; `begin` starts a panel.
  [[nodiscard]] PanelView slice_rows(int64_t begin, int64_t end) const {
    PanelView part = *this;
    if (data != nullptr) part.data = panel(begin / width);
    part.rows = end - begin;
    return part;
  }
  // Offset in elements of (row, col) from `data`; not of a narrow form.
  [[nodiscard]] int64_t offset(int64_t row, int64_t col) const {
    const int64_t base = row / width * panel_elements();
    const int64_t lane = row % width;
    if (dtype == DType::kF32) return base + col * width + lane;
    return base + (col / 2 * width + lane) * 2 + col % 2;
  }
};

// Bytes of a panel matrix, before there is memory for it.
inline int64_t panel_matrix_bytes(DType dtype, int64_t rows, int64_t cols, int64_t width,
                                  NarrowForm form = NarrowForm::kNone) {
  return PanelView{
      .data = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .width = width, .form = form}
      .num_bytes();
}

}  // namespace strata
