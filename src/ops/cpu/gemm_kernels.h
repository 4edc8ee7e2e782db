// SPDX-License-Identifier: Apache-2.0
// The inner kernels of a matrix product: one table for each CPU path and element type. The drivers
// (cpu/gemm*.cc) decide blocks, threads and runs; a kernel sees raw pointers only, because its file
// may be compiled for instructions above the baseline and must not instantiate shared inline code.
// A chain is one fp32 accumulator. Chains continue in ascending order of the summed axis, whatever
// the number of rows in a call. `pair` elements of the summed axis are stored together
// (tensor/panel.h). The path `amx` sums in groups of kGroupSteps pairs (cpu/tiles.h): a call begins
// a new one, so that drivers cut the summed axis at multiples of GemmKernels::group steps.
#pragma once
#include <cstdint>

#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {

constexpr int64_t kMaxWidth = 64;     // lanes of the widest panel
constexpr int64_t kMaxTileRows = 32;  // rows of the tallest tile

// acc[r][lane] continues with sum over c < cols of x[r][c] * panel[c][lane].
struct TileArgs {
  const void* panel = nullptr;  // [cols][width], bf16: [pairs][width][2]; odd ends hold zeros
  int64_t width = 0;            // 16, 32 or 64
  const void* x = nullptr;      // [rows, cols]; nothing past cols is read
  int64_t x_stride = 0;         // elements
  // Whether x is in tiles [16 rows][32 columns], a strip of sixteen rows after the other, x_stride
  // elements apart, with zeros for rows and columns that are not there.
  bool x_is_packed = false;
  int64_t rows = 0;  // 1 to max_rows(width)
  int64_t cols = 0;
  float* acc = nullptr;  // [rows, width]
  int64_t acc_stride = 0;
  bool start_at_zero = false;  // or from acc
  // A hint, memory wanted soon: this many cache lines (0, 1, 2 or 4) go to L2 with each step of
  // `pair`, from `prefetch` on; after every prefetch_steps steps the address moves on by
  // prefetch_jump bytes.
  const void* prefetch = nullptr;
  int prefetch_lines = 0;
  int64_t prefetch_steps = INT64_MAX;
  int64_t prefetch_jump = 0;
  // A hint to kernels that pass over a panel many times: the memory behind it is read next.
  bool reads_on = false;

  // Elements from x to an element of it.
  [[gnu::always_inline]] int64_t offset_of(int64_t row, int64_t col) const {
    if (!x_is_packed) return row * x_stride + col;
    return row / 16 * x_stride + col / 32 * (16 * 32) + row % 16 * 32 + col % 32;
  }
};

// y = add + (scale * acc + bias), rounded once. Null bias or add: left out.
struct EpilogueArgs {
  const float* acc = nullptr;  // [rows, width]
  int64_t acc_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;  // of the tile, at most its width
  float scale = 1.0f;
  const float* bias = nullptr;  // [cols]
  const void* add = nullptr;    // [rows, cols]
  int64_t add_stride = 0;
  bool add_is_bf16 = false;
  void* y = nullptr;  // [rows, cols]
  int64_t y_stride = 0;
  bool y_is_bf16 = false;
};

// Lanes (outputs) [0, width) and columns [col_begin, col_begin + cols) of a panel become a tile
// with the lanes as summed axis: dst[lane][dst_width], bf16: [lane / 2][dst_width][2]; lanes of dst
// past cols are zeroed. col_begin is even.
struct TransposeArgs {
  const void* panel = nullptr;
  int64_t width = 0;  // 16, 32 or 64
  int64_t col_begin = 0;
  int64_t cols = 0;  // at most dst_width; the panel's odd pair included
  void* dst = nullptr;
  int64_t dst_width = 0;  // 16, 32 or 64
};

// dst[col][row] = src[row][col].
struct TransposeF32Args {
  const float* src = nullptr;  // [rows, cols]
  int64_t src_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  float* dst = nullptr;  // [cols, rows]
  int64_t dst_stride = 0;
};

// Rows of a matrix taken in steps of one (f32) or two (bf16) tokens: first[s] is the first row of
// step s and rows[s] says how many it has. A row that a bf16 step lacks is zeros; only paths with
// groups have steps without rows.
struct StepArgs {
  const void* x = nullptr;  // [T, cols]
  int64_t x_stride = 0;
  const int32_t* first = nullptr;
  const uint8_t* rows = nullptr;
  int64_t steps = 0;
  int64_t cols = 0;
  void* dst = nullptr;
  int64_t dst_stride = 0;  // pack_tokens_as_panel: lanes of a step (cols padded with zeros);
                           // pack_tokens_as_rows: elements
};

// Rows in tiles, as TileArgs::x_is_packed has them.
struct PackRowsArgs {
  const void* x = nullptr;  // [rows, cols]
  int64_t x_stride = 0;     // elements
  int64_t rows = 0;
  int64_t cols = 0;
  void* dst = nullptr;     // aligned to 64 bytes
  int64_t dst_stride = 0;  // elements from a strip of sixteen rows to the next
};

struct GemmKernels {
  int64_t pair = 1;     // elements of the summed axis in one step
  int64_t group = 1;    // steps that are summed on their own before they join a chain
  int64_t rows_16 = 0;  // tallest tile over panels of 16, 32 and 64 lanes
  int64_t rows_32 = 0;
  int64_t rows_64 = 0;
  void (*accumulate)(const TileArgs&) = nullptr;
  void (*apply_epilogue)(const EpilogueArgs&) = nullptr;
  void (*transpose_panel)(const TransposeArgs&) = nullptr;
  // dst[step][lane], bf16: [step][lane][2]: a panel whose summed axis is the tokens.
  void (*pack_tokens_as_panel)(const StepArgs&) = nullptr;
  // dst[col][step], bf16: [col][step][2]: rows whose summed axis is the tokens.
  void (*pack_tokens_as_rows)(const StepArgs&) = nullptr;
  void (*transpose_f32)(const TransposeF32Args&) = nullptr;
  // Null: products read rows as they lie. Else they are faster on packed ones.
  void (*pack_rows)(const PackRowsArgs&) = nullptr;
};

// Plain C++, and the tables of the paths (defined only where the compiler can build them).
const GemmKernels& gemm_kernels_reference(bool bf16);
const GemmKernels& gemm_kernels_avx2(bool bf16);
const GemmKernels& gemm_kernels_avx512(bool bf16);
const GemmKernels& gemm_kernels_avx512_bf16();
// Kernels for bf16, with equal bits.
const GemmKernels& gemm_kernels_amx_avx2();
const GemmKernels& gemm_kernels_amx_avx512();
const GemmKernels& gemm_kernels_amx_tiles();

}  // namespace strata::ops::cpu
