// SPDX-License-Identifier: Apache-2.0
#include "model/weights/row_blocks.h"

#include <algorithm>

namespace strata::model {
namespace {

int64_t padded(int64_t rows, int64_t width) { return (rows + width - 1) / width * width; }

// Calls body(panel of the block, first row in it, first row of `rows`, count).
template <typename Body>
void for_each_block(const RowBlocks& blocks, const PanelView& panel, int64_t first_row,
                    int64_t count, Body body) {
  const int64_t pair_rows = blocks.first + blocks.second;
  for (int64_t row = first_row; row < first_row + count;) {
    const int64_t in_pair = row % pair_rows;
    const bool is_second = in_pair >= blocks.first;
    const int64_t begin = in_pair - (is_second ? blocks.first : 0);
    const int64_t size = is_second ? blocks.second : blocks.first;
    const int64_t n = std::min(size - begin, first_row + count - row);
    body(blocks.block(panel, row / pair_rows, is_second), begin, row - first_row, n);
    row += n;
  }
}

}  // namespace

int64_t RowBlocks::panel_rows(int64_t rows, int64_t width) const {
  if (empty()) return rows;
  CHECK(rows % (first + second) == 0, rows, first, second);
  return rows / (first + second) * (padded(first, width) + padded(second, width));
}

PanelView RowBlocks::block(const PanelView& panel, int64_t pair, bool is_second) const {
  const int64_t first_padded = padded(first, panel.width);
  const int64_t begin =
      pair * (first_padded + padded(second, panel.width)) + (is_second ? first_padded : 0);
  PanelView view = panel;
  view.data = panel.panel(begin / panel.width);
  view.rows = is_second ? second : first;
  return view;
}

void pack_rows(Backend& backend, const RowBlocks& blocks, TensorView rows, int64_t first_row,
               PanelView panel) {
  if (blocks.empty()) return ops::pack(backend, rows, first_row, panel);
  for_each_block(blocks, panel, first_row, rows.rows(),
                 [&](const PanelView& block, int64_t begin, int64_t from, int64_t count) {
                   ops::pack(backend, rows.slice_rows(from, from + count), begin, block);
                 });
}

void pack_narrow_rows(Backend& backend, const RowBlocks& blocks, const NarrowRows& rows,
                      int64_t first_row, PanelView panel) {
  if (blocks.empty()) return ops::pack_narrow_rows(backend, rows, first_row, panel);
  const int64_t row_bytes = narrow_layout(rows.form).row_bytes(rows.cols);
  for_each_block(blocks, panel, first_row, rows.rows,
                 [&](const PanelView& block, int64_t begin, int64_t from, int64_t count) {
                   NarrowRows part = rows;
                   part.data += from * row_bytes;
                   part.rows = count;
                   ops::pack_narrow_rows(backend, part, begin, block);
                 });
}

void append_row_packs(const RowBlocks& blocks, TensorView rows, PanelView panel,
                      std::vector<ops::PackItem>& packs) {
  if (blocks.empty()) {
    packs.push_back({rows, panel});
    return;
  }
  for_each_block(blocks, panel, 0, rows.rows(),
                 [&](const PanelView& block, int64_t begin, int64_t from, int64_t count) {
                   CHECK(begin == 0, begin);
                   packs.push_back({rows.slice_rows(from, from + count), block});
                 });
}

void unpack_rows(Backend& backend, const RowBlocks& blocks, PanelView panel, int64_t first_row,
                 TensorView rows) {
  if (blocks.empty()) return ops::unpack(backend, panel, first_row, rows);
  for_each_block(blocks, panel, first_row, rows.rows(),
                 [&](const PanelView& block, int64_t begin, int64_t to, int64_t count) {
                   ops::unpack(backend, block, begin, rows.slice_rows(to, to + count));
                 });
}

}  // namespace strata::model
