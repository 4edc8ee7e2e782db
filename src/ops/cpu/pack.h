// SPDX-License-Identifier: Apache-2.0
// The CPU side of ops/pack.h: arguments are checked.
#pragma once
#include "ops/pack.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

int64_t panel_width(const CpuBackend& backend);
void pack(CpuBackend& backend, const TensorView& rows, int64_t first_row, const PanelView& panel);
void pack_list(CpuBackend& backend, std::span<const PackItem> items);
void unpack(CpuBackend& backend, const PanelView& panel, int64_t first_row, const TensorView& rows);
void gather_rows(CpuBackend& backend, const PanelView& panel, std::span<const int32_t> token_ids,
                 const TensorView& y);

}  // namespace strata::ops::cpu
