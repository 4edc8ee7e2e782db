// SPDX-License-Identifier: Apache-2.0
// Matrix products over ragged groups of rows, each with weights of its own (the experts of a
// layer), where how many rows a group has is known in tensor memory alone. n rows, N outputs, K
// inputs, R rank, E groups, S sequences. What gemm, gemm_dx, gemm_dw of ops/gemm.h give group by
// group, to the bit: a row's result depends on the row and its group's weights alone. No capacity;
// an empty group costs nothing, and its weights are never read. Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "tensor/index.h"
#include "tensor/panel.h"
#include "tensor/view.h"

namespace strata::ops {

// Matrices of one shape at equal distances, one of each group.
struct PanelStack {
  PanelView first;
  int64_t bytes = 0;  // from one to the next
  [[nodiscard]] PanelView at(int64_t group) const {
    PanelView panel = first;
    panel.data = static_cast<char*>(first.data) + group * bytes;
    return panel;
  }
};
struct TensorStack {
  TensorView first;
  int64_t bytes = 0;
  [[nodiscard]] TensorView at(int64_t group) const {
    TensorView view = first;
    view.data = static_cast<char*>(first.data) + group * bytes;
    return view;
  }
};

// Rows sorted by group and in each by token, as sort_routes leaves them, and so by sequence. The
// rows of one group and one sequence are a part.
struct GroupedRows {
  int64_t num_rows = 0;               // n
  IndexView<int64_t> group_ends;      // [E] end row of each group; the last is n
  IndexView<int64_t> part_ends;       // [most_parts] end row of each part; as many as there are
  IndexView<int32_t> part_sequences;  // [most_parts] the sequence of each part
  // A list of the host: end token of each sequence, ascending. The last, the number of tokens, is
  // also the most rows of a group.
  std::span<const int64_t> sequence_ends;
};
inline int64_t most_parts(int64_t num_rows, int64_t num_groups, int64_t num_sequences) {
  return std::min(num_rows, num_groups * num_sequences);
}

// Writes part_ends and part_sequences from group_ends and the token of each row [n].
void split_groups_by_sequence(Backend& backend, IndexView<int32_t> token_of_row,
                              const GroupedRows& rows);

// In every group the rows of sequences [first, end) continue their accumulators with x W^T (or x
// W).
struct GroupedLowRank {
  int64_t first = 0;
  int64_t end = 0;
  TensorView x;  // [n, R]
  PanelStack w;  // [E] of [N, R] (LoRA B); of a dx: of [R, K] (LoRA A)
};

// Lists of sequences, here and below, are disjoint and ascending.
struct GroupedArgs {
  TensorView x;  // [n, K]; of a dx: dy [n, N]
  PanelStack w;  // [E] of [N, K]
  GroupedRows rows;
  std::span<const GroupedLowRank> runs = {};
  TensorStack bias = {};  // gemm_groups only: [E] of [N] f32, or empty
};

// Writes y [n, N], f32 or bf16.
void gemm_groups(Backend& backend, const GroupedArgs& args, TensorView y);

// Writes dx [n, K], f32 or bf16; with accumulate (f32 only) the accumulators start from dx.
void gemm_groups_dx(Backend& backend, const GroupedArgs& args, TensorView dx,
                    bool accumulate = false);

// The product of the rows of sequences [first, end) in every group.
struct GroupedProduct {
  int64_t first = 0;
  int64_t end = 0;
  PanelStack w;        // [E] of [N, K]
  float scale = 1.0f;  // applied to the finished accumulator
};

// Columns [0, N) of the rows of each product become scale * x w^T (LoRA's h); the rest of y [n, *]
// is left alone.
void gemm_group_runs(Backend& backend, const GroupedRows& rows, TensorView x,
                     std::span<const GroupedProduct> products, TensorView y);

// Columns [0, K) of the rows of each product become scale * dy w; with accumulate (f32 dx and scale
// 1 only) the accumulators start from dx.
void gemm_group_runs_dx(Backend& backend, const GroupedRows& rows, TensorView dy,
                        std::span<const GroupedProduct> products, TensorView dx,
                        bool accumulate = false);

// Columns [0, K) of the rows of each product become scale * x, as ops::scale gives them.
void scale_group_runs(Backend& backend, const GroupedRows& rows, TensorView x,
                      std::span<const GroupedProduct> products, TensorView y);

// Adds to dw of every group dy^T x of its rows of sequences [first, end): one chain over ascending
// rows from the stored value, in which bf16's pairs straddle no two sequences (gemm_dw).
struct GroupedGradient {
  int64_t first = 0;
  int64_t end = 0;
  TensorView dy;   // [n, N]
  TensorView x;    // [n, K]
  TensorStack dw;  // [E] of [N, K] f32; those of two items may be one, and are added to in order
};
void gemm_dw_groups(Backend& backend, const GroupedRows& rows,
                    std::span<const GroupedGradient> gradients);

}  // namespace strata::ops
