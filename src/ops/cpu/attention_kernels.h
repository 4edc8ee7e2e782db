// SPDX-License-Identifier: Apache-2.0
// The inner kernels of attention: one table for each CPU path and element type. The driver
// (cpu/attention*.cc) decides items, blocks, tiles and threads and is compiled for the baseline; a
// kernel sees raw pointers only. A word is the 4 bytes that one step of a chain takes from a row:
// one f32, or a pair of bf16 (`pack` elements); its padding is zero. Paths without bf16
// instructions widen bf16 and have pack 1. Packed forms: rows [row][step] words; lanes
// [step][kKeyBlock] words, a lane for each row; depth [row / pack][dim lanes] words, rows summed
// over. The path amx sums in groups of kGroupSteps steps, counted from the start of the summed axis
// (attention_groups_impl.h); where `step_multiple` says so, lanes and depth forms end with zero
// steps up to whole groups. Scores and maxima are in units of log 2, so that probabilities are
// powers of two.
#pragma once
#include <cstdint>

#include "ops/attention.h"
#include "ops/cpu/cpu_path.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {

constexpr int64_t kTileRows = 6;  // rows whose chains share registers
// Query rows of a forward tile: their scores, probabilities and accumulators stay in a 32 KiB L1
// next to a block of keys or of values, and their softmax latencies overlap.
constexpr int64_t kForwardRows = 4 * kTileRows;
constexpr int64_t kMostTileRows = 64;     // of any table's tile_rows
constexpr int64_t kMostForwardRows = 64;  // of any table's forward_rows
// Queries of a tile of backward, whose P and dS are kept: a multiple of a table's tile_rows and of
// a group of pairs.
constexpr int64_t kQueryTile = 96;
constexpr int64_t kMostQueryTile = 192;  // of any table's query_tile

// Chains of `rows` rows: acc[r][lane] continues with sum over d < steps of
// x[r x_row + d x_step] * panel[d][lane]. Kernels of groups take x in rows form whose words go on
// to a whole group (x_step 1, phase 0), or in depth form (x_row 1). Those of tiles read whole
// groups of the panel, before the first of the steps and behind the last too, where it holds finite
// numbers and x in rows form zeros; and steps of x in depth form up to a multiple of 16 rows.
struct ProductTile {
  const uint32_t* x = nullptr;
  int64_t x_row = 0;   // words
  int64_t x_step = 0;  // words
  const uint32_t* panel = nullptr;
  int64_t panel_width = 0;  // words
  int64_t steps = 0;
  int64_t rows = 0;   // 1 to tile_rows
  int64_t lanes = 0;  // a multiple of 16
  float* acc = nullptr;
  int64_t acc_stride = 0;
  int64_t phase = 0;  // steps that the first group has before the first of these
};

// One key block for a tile of query rows: scores, online softmax, P V.
struct ForwardTile {
  const uint32_t* q = nullptr;  // rows
  int64_t q_stride = 0;
  const uint32_t* keys = nullptr;    // lanes
  const uint32_t* values = nullptr;  // depth
  int64_t steps = 0;                 // words of a row of q
  int64_t lanes = 0;                 // of values
  int64_t rows = 0;                  // 1 to forward_rows
  const int64_t* visible = nullptr;  // [rows] keys of the block up to a row's own: <= 0 none
  const int64_t* hidden = nullptr;   // [rows] keys of the block before its window; null: no window
  float scale = 1.0f;                // of scores, times log2(e)
  float tanh_scale = 0.0f;           // not 0: scores are scale tanh(tanh_scale q k)
  float* max = nullptr;              // [rows] running
  float* sum = nullptr;              // [rows][16] running; the lanes are added at the end
  float* acc = nullptr;              // [rows][lanes] running
};

// One key block for a tile of query rows: P and dS, unscaled, ready for the three products.
struct BackwardTile {
  const uint32_t* q = nullptr;  // rows
  int64_t q_stride = 0;
  const uint32_t* d_out = nullptr;  // rows
  int64_t d_out_stride = 0;
  const uint32_t* keys = nullptr;  // lanes
  int64_t key_steps = 0;
  const uint32_t* values = nullptr;  // lanes
  int64_t value_steps = 0;
  int64_t rows = 0;  // 1 to tile_rows
  const int64_t* visible = nullptr;
  const int64_t* hidden = nullptr;
  float scale = 1.0f;
  float tanh_scale = 0.0f;       // as a forward tile's; dS is times the slope of tanh
  const float* lse = nullptr;    // [rows], times log2(e)
  const float* delta = nullptr;  // [rows]
  uint32_t* p = nullptr;         // depth: [rows / pack][kKeyBlock]
  uint32_t* d_s = nullptr;       // depth
  uint32_t* d_s_rows = nullptr;  // rows: [rows][kKeyBlock / pack]; with pack 1 unused
};

// Rows of one or more neighbouring heads, to be packed head by head. The order of reading is by
// row and then by address across the heads, which the processor's prefetchers follow.
struct PackRows {
  const void* const* rows = nullptr;  // [count] first head's elements; the other heads' follow
  int64_t count = 0;
  int64_t dim = 0;
  int64_t num_heads = 1;
  int64_t head_words = 0;  // of dst, from one head to the next
};

struct AttentionKernels {
  int64_t pack = 1;
  int64_t tile_rows = kTileRows;        // of a product and of a backward tile, at most
  int64_t forward_rows = kForwardRows;  // of a forward tile, at most
  int64_t query_tile = kQueryTile;
  int64_t key_blocks = 1;     // that a tile of many query rows is shown in turn
  int64_t step_multiple = 1;  // of the steps of lanes and depth forms
  // One row to words, a multiple of 16 of them.
  void (*pack_row)(const void* row, int64_t dim, uint32_t* dst) = nullptr;
  // At most kKeyBlock rows to lanes form; missing lanes become zero.
  void (*pack_in_lanes_form)(const PackRows& from, uint32_t* dst) = nullptr;
  // Rows to depth form.
  void (*pack_in_depth_form)(const PackRows& from, uint32_t* dst) = nullptr;
  void (*forward_tile)(const ForwardTile& tile) = nullptr;
  void (*backward_tile)(const BackwardTile& tile) = nullptr;
  void (*accumulate_product)(const ProductTile& tile) = nullptr;
  // Sum of a row's 16 lanes.
  float (*sum_row)(const float* lanes) = nullptr;
  // dst = acc * scale, with zero for minus zero: bf16 or f32.
  void (*write_row)(const float* acc, float scale, int64_t dim, void* dst, bool is_bf16) = nullptr;
  // out[lane] = the chain of a score over two rows in lanes form, for kKeyBlock lanes.
  void (*dot_lanes)(const uint32_t* a, const uint32_t* b, int64_t steps, float* out) = nullptr;
};

extern const AttentionKernels kAttentionAvx512Bf16;     // bf16 by its instructions
extern const AttentionKernels kAttentionAvx512Widened;  // bf16 as f32
extern const AttentionKernels kAttentionAvx512F32;
extern const AttentionKernels kAttentionAvx2Widened;
extern const AttentionKernels kAttentionAvx2F32;
// The path amx, bf16 alone: the same bits by FMA, which flushes denormals, and by tiles.
extern const AttentionKernels kAttentionAmxAvx2;
extern const AttentionKernels kAttentionAmxAvx512;
extern const AttentionKernels kAttentionAmxTiles;

}  // namespace strata::ops::cpu
