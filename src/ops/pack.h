// SPDX-License-Identifier: Apache-2.0
// Between row-major matrices and panels (tensor/panel.h). Conversions round to nearest even; f32 ->
// f32 and bf16 -> bf16 keep every bit (NaN payloads too).
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::ops {

// Outputs in a panel of weights on this backend (tensor/panel.h).
int64_t panel_width(const Backend& backend);

// Writes rows [first_row, first_row + rows.rows()) of the panel matrix from `rows` [n, K] (f32,
// bf16 or f16), converting to the panel's dtype. Padding lanes and the odd pair stay (or become)
// zero.
void pack(Backend& backend, TensorView rows, int64_t first_row, PanelView panel);

// One pack of many: rows of a matrix, whole.
struct PackItem {
  TensorView rows;
  PanelView panel;
};
// pack of every item from its first row on, each by one worker: for many small matrices.
void pack_list(Backend& backend, std::span<const PackItem> items);

// Writes rows of a narrow form to panels of it (tensor/narrow.h), which `pack` does not write:
// numbers of few bits are made by no op.
void pack_narrow_rows(Backend& backend, const NarrowRows& rows, int64_t first_row, PanelView panel);

// Reads rows [first_row, first_row + rows.rows()) into `rows` [n, K] f32 or bf16 (same dtype or
// widened).
void unpack(Backend& backend, PanelView panel, int64_t first_row, TensorView rows);

// Writes y [T, K] (the panel's dtype, or f32): row token_ids[t] of the panel matrix. Ids are
// checked by the caller.
void gather_rows(Backend& backend, PanelView panel, std::span<const int32_t> token_ids,
                 TensorView y);

}  // namespace strata::ops
