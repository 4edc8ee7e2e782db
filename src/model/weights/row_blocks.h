// SPDX-License-Identifier: Apache-2.0
// RowBlocks: a matrix whose rows come in two alternating blocks, each of which products read as a
// matrix of its own: kv_b_proj has, for each head, rows of keys and then rows of values. In panels
// a block starts a new panel, so the panel matrix has padding rows (zeros) between blocks; its
// `rows` count them. Blocks of 0 rows: an ordinary matrix.
#pragma once
#include <vector>

#include "backend/backend.h"
#include "ops/pack.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::model {

struct RowBlocks {
  int64_t first = 0;
  int64_t second = 0;

  [[nodiscard]] bool empty() const { return first + second == 0; }
  // Rows of the panel matrix that holds `rows` rows.
  [[nodiscard]] int64_t panel_rows(int64_t rows, int64_t panel_width) const;
  // The pair-th first block (or second block) of a panel matrix.
  [[nodiscard]] PanelView block(const PanelView& panel, int64_t pair, bool is_second) const;
};

// ops::pack and ops::unpack of rows [first_row, first_row + rows.rows()) of the matrix.
void pack_rows(Backend& backend, const RowBlocks& blocks, TensorView rows, int64_t first_row,
               PanelView panel);
// ops::pack_narrow_rows of them.
void pack_narrow_rows(Backend& backend, const RowBlocks& blocks, const NarrowRows& rows,
                      int64_t first_row, PanelView panel);
// The packs that pack_rows of all rows makes.
void append_row_packs(const RowBlocks& blocks, TensorView rows, PanelView panel,
                      std::vector<ops::PackItem>& packs);
void unpack_rows(Backend& backend, const RowBlocks& blocks, PanelView panel, int64_t first_row,
                 TensorView rows);

}  // namespace strata::model
