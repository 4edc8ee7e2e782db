// SPDX-License-Identifier: Apache-2.0
// The inner kernels of a matrix product: one table for each CPU path and element type. The drivers
// (cpu/gemm*.cc) decide blocks, threads and runs; a kernel sees raw pointers only, because its file
// may be compiled for instructions above the baseline and must not instantiate shared inline code.
// A chain is one fp32 accumulator. Chains continue in ascending order of the summed axis, whatever
// the number of rows in a call. `pair` elements of the summed axis are stored together
// (tensor/panel.h).
#pragma once
#include <cstdint>

namespace strata::ops::cpu {

constexpr int64_t kMaxWidth = 64;     // lanes of the widest panel
constexpr int64_t kMaxTileRows = 24;  // rows of the tallest tile

// acc[r][lane] continues with sum over c < cols of x[r][c] * panel[c][lane].
struct TileArgs {
  const void* panel = nullptr;  // [cols][width], bf16: [pairs][width][2]; odd ends hold zeros
  int64_t width = 0;            // 16, 32 or 64
  const void* x = nullptr;      // [rows, cols]; nothing past cols is read
  int64_t x_stride = 0;         // elements
  int64_t rows = 0;             // 1 to max_rows(width)
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
// step s; a bf16 step with single[s] != 0 has no second row and is paired with zeros.
struct StepArgs {
  const void* x = nullptr;  // [T, cols]
  int64_t x_stride = 0;
  const int32_t* first = nullptr;
  const uint8_t* single = nullptr;
  int64_t steps = 0;
  int64_t cols = 0;
  void* dst = nullptr;
  int64_t dst_stride = 0;  // pack_tokens_as_panel: lanes of a step (cols padded with zeros);
                           // pack_tokens_as_rows: elements
};

struct GemmKernels {
  int64_t pair = 1;     // elements of the summed axis in one step
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
};

// Plain C++, and the tables of the paths (defined only where the compiler can build them).
const GemmKernels& gemm_kernels_reference(bool bf16);
const GemmKernels& gemm_kernels_avx2(bool bf16);
const GemmKernels& gemm_kernels_avx512(bool bf16);
const GemmKernels& gemm_kernels_avx512_bf16();

}  // namespace strata::ops::cpu
