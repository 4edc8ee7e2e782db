// The CPU side of ops/pack.h: arguments are checked.
#pragma once
#include "ops/pack.h"

namespace strata::ops::cpu {

void pack(Backend& backend, const TensorView& rows, int64_t first_row, const PanelView& panel);
void pack_list(Backend& backend, std::span<const PackItem> items);
void unpack(Backend& backend, const PanelView& panel, int64_t first_row, const TensorView& rows);
void gather_rows(Backend& backend, const PanelView& panel, std::span<const int32_t> token_ids,
                 const TensorView& y);

}  // namespace strata::ops::cpu
