// SPDX-License-Identifier: Apache-2.0
// The CPU drivers behind ops/gemm.h: arguments are checked, T, N and K are positive.
#pragma once
#include <algorithm>

#include "ops/cpu/cpu_path.h"
#include "ops/cpu/gemm_kernels.h"
#include "ops/gemm.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// Several products in one parallel region, so that workers wait for each other once.
// most_rows: of any product of a list, so that what is taken depends on no division of the rows; 0:
// what these products need.
void gemm(CpuBackend& backend, std::span<const GemmArgs> products, std::span<const TensorView> y,
          int64_t most_rows = 0);
void gemm_runs(CpuBackend& backend, const TensorView& x, std::span<const SegmentProduct> runs,
               const TensorView& y);
// The gradients `overlapped` are made in the same parallel region, each by one worker to the bits
// of gemm_dw: they stream memory while other workers multiply. No two have one dw. is_alone: one
// product of a pass' rows, which workers may pack together.
void gemm_dx(CpuBackend& backend, std::span<const GemmArgs> products,
             std::span<const TensorView> dx, bool accumulate,
             std::span<const GemmDwArgs> overlapped = {}, int64_t most_rows = 0,
             bool is_alone = false);
void gemm_dx_list(CpuBackend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx, bool accumulate, int64_t most_rows);
void gemm_dx_blocked_with_runs(CpuBackend& backend, const GemmArgs& args, TensorView dx,
                               bool accumulate, const RunProducts& runs);
void gemm_dx_each(CpuBackend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx);
void gemm_dw(CpuBackend& backend, TensorView dy, TensorView x,
             std::span<const int64_t> sequence_ends, TensorView dw);

const GemmKernels& choose_gemm_kernels(CpuPath path, DType dtype);

// Blocks, which bound the scratch that a call takes.
// gemm: rows that stay in L2 and L3 while the panels pass.
constexpr int64_t kProductRows = 528;
// gemm_dx: rows whose chains wait (264 KiB), and lanes of a transposed panel (256 KiB in bf16).
constexpr int64_t kBackwardRows = 1056;
constexpr int64_t kBackwardLanes = 2048;
// Rows that are packed (GemmKernels::pack_rows): a slice of their columns (1 MiB) stays in L2 while
// some panels pass over it, whose chains (2 MiB) wait for the next slice.
constexpr int64_t kPackedBytes = 4 << 20;
constexpr int64_t kMostPackedRows = 512;
constexpr int64_t kFewestPackedRows = 64;  // fewer are packed as they are read
constexpr int64_t kSliceColumns = 1024;
constexpr int64_t kSlicePanels = 16;
// gemm_dw: steps of tokens in a panel (128 KiB), and columns of the row operand prepared at a time.
constexpr int64_t kGradientSteps = 512;
constexpr int64_t kGradientRows = 2048;

// What the drivers share. A part of a grid of outputs: one worker's share.
struct Grid {
  int64_t col_parts = 1;
  int64_t row_parts = 1;
};

// Cuts cols x rows items for `threads` workers so that the largest part is smallest; columns first,
// because a column's weights are then read by one worker only.
Grid split_grid(int64_t threads, int64_t cols, int64_t rows);

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
};

// The index-th of `parts` nearly equal parts of [0, count).
inline Range part_of(int64_t count, int64_t index, int64_t parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t max_rows(const GemmKernels& kernels, int64_t width) {
  return width >= 64 ? kernels.rows_64 : width >= 32 ? kernels.rows_32 : kernels.rows_16;
}

// The narrowest tile that holds `cols` outputs (at most 64).
inline int64_t tile_width(int64_t cols) { return cols > 32 ? 64 : cols > 16 ? 32 : 16; }

// Rows of `cols` columns that are packed at a time: whole strips.
inline int64_t packed_rows(int64_t cols) {
  const int64_t strip_bytes = ceil_div(cols, 32) * 1024;
  return std::clamp(kPackedBytes / strip_bytes * 16, kFewestPackedRows, kMostPackedRows);
}
// Elements of a strip, and bytes of so many rows.
inline int64_t packed_strip(int64_t cols) { return ceil_div(cols, 32) * (16 * 32); }
inline int64_t packed_bytes(int64_t rows, int64_t cols) {
  return ceil_div(rows, 16) * packed_strip(cols) * 2;
}

// All rows of a product in tiles, packed by the workers together, where the kernels want it and
// they are one block; else a worker packs what it needs, so that what is taken does not grow with
// the rows. `data` is not set where nothing is computed.
struct PackedRows {
  bool are_shared = false;
  const char* data = nullptr;
};
PackedRows pack_rows_together(CpuBackend& backend, const TensorView& x, int64_t cols);

// Where element (row, col) of a view is.
inline char* address(const TensorView& view, int64_t row, int64_t col) {
  return static_cast<char*>(view.data) + (row * view.row_stride + col) * dtype_bytes(view.dtype);
}

}  // namespace strata::ops::cpu
