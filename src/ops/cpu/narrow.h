// SPDX-License-Identifier: Apache-2.0
// Weights in few bits on the CPU (tensor/narrow.h): what ops/pack.h has of them, and blocks of
// their panels unpacked for products, which then are those of bf16 panels.
#pragma once
#include "ops/cpu/cpu_path.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/pack.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

void pack_narrow_rows(CpuBackend& backend, const NarrowRows& rows, int64_t first_row,
                      const PanelView& panel);
// The panel is narrow; arguments are checked, memory is open.
void unpack_narrow_rows(CpuBackend& backend, const PanelView& panel, int64_t first_row,
                        const TensorView& rows);
void gather_narrow_rows(CpuBackend& backend, const PanelView& panel, std::span<const int32_t> ids,
                        const TensorView& y);

// Space for a block of a panel in bf16, on a worker's stack: that of rows that pass in many tiles
// (in L2), and of rows in one, which take what was just unpacked from L1.
constexpr int64_t kNarrowBlockBytes = 64 << 10;
constexpr int64_t kNarrowTileBytes = 8 << 10;
struct alignas(64) NarrowScratch {
  char bytes[kNarrowBlockBytes];
};
// Columns of a block of so many bytes, a multiple of a group's.
constexpr int64_t narrow_columns(int64_t bytes, int64_t width) { return bytes / (2 * width); }

// Continues the chains of a tile with a whole panel in few bits (its `panel` and `cols` are not
// read), where the path has a kernel for so few rows; or returns false.
bool try_accumulate_narrow_panel(CpuPath path, const PanelView& panel, int64_t index,
                                 const TileArgs& tile);

// Writes columns [col, col + cols) of one panel, multiples of 32, to dst as bf16 [cols / 2][width]
// [2].
void unpack_narrow_columns(CpuPath path, const PanelView& panel, int64_t index, int64_t col,
                           int64_t cols, void* dst);

}  // namespace strata::ops::cpu
