// SPDX-License-Identifier: Apache-2.0
// Matrix products with panel weights. T tokens, N outputs, K inputs, R rank.
//   gemm:     y[T, N]  = scale * (x W^T (+) sum of the row's low-rank term) + bias + add
//   gemm_dx:  dx[T, K] = scale * (dy W (+) the row's low-rank term)
//   gemm_dw:  dw[N, K] += dy^T x, summed over tokens
// Element types: x, dy and weights share one type, f32 or bf16; outputs are f32 or bf16 and rounded
// once. Order of summation: one fp32 accumulator for each output. gemm: ascending K, then the
// low-rank term's ascending R in the same accumulator. gemm_dx: ascending N, then ascending R
// (gemm_dx_blocked_with_runs says its own). gemm_dw: ascending tokens, starting from the value
// stored in dw. bf16: the chain runs over pairs (k, k + 1); an odd end is paired with zero; in
// gemm_dw a pair never straddles two sequences. Nothing depends on T, on the other rows, on tiles
// or on threads. Paths without bf16 instructions widen to f32 and keep the same chain order;
// avx512_bf16 takes denormals for zero, as its instruction does. The path amx sums bf16 in groups
// of 32 elements of the summed axis, from the axis' own start (docs/numerics.md): a low-rank term,
// a sequence of gemm_dw and what continues dx or dw each begin a new one. Engine thread only. y and
// dx must not alias the inputs, except y == add of the same dtype.
#pragma once
#include <span>

#include "backend/backend.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::ops {

// Rows [begin, end) of the batch continue their accumulators with x W^T (gemm) or x W (gemm_dx).
// Runs are disjoint and ascending; rows outside every run have no low-rank term.
struct LowRankSegment {
  int64_t begin = 0;
  int64_t end = 0;
  TensorView x;  // gemm: [T, R] (rows of the same batch, only begin..end are read); gemm_dx: [T, R]
  PanelView w;   // gemm: [N, R] (LoRA B); gemm_dx: [R, K] (LoRA A)
};

struct GemmArgs {
  TensorView x;  // gemm: [T, K]; gemm_dx: dy [T, N]; row_stride may exceed the width
  PanelView w;   // [N, K]
  std::span<const LowRankSegment> runs = {};
  float scale = 1.0f;    // applied to the finished accumulator
  TensorView bias = {};  // gemm only: [N] f32, or empty; added after scale
  TensorView add = {};   // [T, N] f32 or bf16, or empty; added last (the residual): add + value
};

// Writes y [T, N], f32 or bf16.
void gemm(Backend& backend, const GemmArgs& args, TensorView y);

// The product of one run of rows in gemm_runs.
struct SegmentProduct {
  int64_t begin = 0;
  int64_t end = 0;
  PanelView w;         // [N, K] of this run (LoRA A)
  float scale = 1.0f;  // applied to the finished accumulator
};

// Rows [begin, end) and columns [0, N) of y become scale * x w^T, for every run in one parallel
// region: what gemm gives run by run, to the bit, but short runs share the threads. Runs are
// disjoint and ascending; the rest of y is left alone.
void gemm_runs(Backend& backend, TensorView x, std::span<const SegmentProduct> runs, TensorView y);

// A gemm_dw (below) of many.
struct GemmDwArgs {
  TensorView dy;  // [T, N]
  TensorView x;   // [T, K]
  std::span<const int64_t> sequence_ends;
  TensorView dw;  // [N, K] f32
};

// Writes dx [T, K], f32 or bf16. With accumulate (f32 dx and scale 1 only) the accumulators start
// from dx.
void gemm_dx(Backend& backend, const GemmArgs& args, TensorView dx, bool accumulate = false);

// What the backward of a projection makes of the batch's runs (adapters' rows) besides dx: a
// gemm_dx of each, into d_h, then gradients, which may read d_h. Each is what it is alone, to the
// bit; no two write one place.
struct RunProducts {
  std::span<const GemmArgs> inputs = {};
  std::span<const TensorView> d_h = {};
  std::span<const GemmDwArgs> gradients = {};
  // The batch's rows, those of its longest run, and whether each run has an adapter of its own, so
  // that all gradients may be made at once.
  int64_t num_rows = 0;
  int64_t longest_run = 0;
  bool distinct = false;
};

// Outputs in one chain of gemm_dx_blocked_with_runs in f32. A head has tens of thousands of
// outputs: in one fp32 chain the sum's error would exceed the noise of a blocked product tenfold.
// In bf16 the rounding of dy is far above it, and one chain is faster.
constexpr int64_t kChainOutputs = 512;

// The input gradient of a projection. bf16, or N <= kChainOutputs: gemm_dx. Else f32, in another
// order: N is cut into blocks of kChainOutputs outputs, each of which is one chain over ascending N
// from zero, the last continued by the low-rank term's; the blocks' sums are added in ascending
// order, with accumulate to what dx holds. The products of `runs` come first: args.runs read them.
// An empty dx: those alone.
void gemm_dx_blocked_with_runs(Backend& backend, const GemmArgs& args, TensorView dx,
                               bool accumulate = false, const RunProducts& runs = {});

// gemm_dx of each product, one worker each, to the bit: for many products of few rows, whose
// shapes may differ. Outputs must not overlap.
void gemm_dx_each(Backend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx);

// Several products, each with rows, in one parallel region: what gemm and gemm_dx give one by one,
// to the bit, but workers wait for each other once. Outputs must not overlap. Weights are of equal
// shape; no product has more than most_rows rows, on which alone the scratch that is taken depends.
void gemm_list(Backend& backend, std::span<const GemmArgs> products, std::span<const TensorView> y,
               int64_t most_rows);
void gemm_dx_list(Backend& backend, std::span<const GemmArgs> products,
                  std::span<const TensorView> dx, bool accumulate, int64_t most_rows);

// Adds to dw [N, K] f32 (row-major, dense or with a row stride): dy [T, N], x [T, K]. sequence_ends
// holds the ascending end rows of the sequences that make up the T rows; the last is T.
void gemm_dw(Backend& backend, TensorView dy, TensorView x, std::span<const int64_t> sequence_ends,
             TensorView dw);

}  // namespace strata::ops
