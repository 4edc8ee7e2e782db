// SPDX-License-Identifier: Apache-2.0
// Matrix products over ragged groups of rows, each with weights of its own (the experts of a
// layer). n rows, N outputs, K inputs, R rank. What gemm and gemm_dx of ops/gemm.h give group by
// group, to the bit: a row's result depends on the row and its group's weights alone. No capacity;
// an empty group costs nothing, and rows outside every group are left alone. Engine thread only.
#pragma once
#include <vector>

#include "ops/gemm.h"

namespace strata::ops {

struct GemmGroup {
  int64_t begin = 0;
  int64_t end = 0;
  PanelView w;  // [N, K]
};

// Lists of a call, which a caller may keep so that a warm call allocates nothing.
struct GemmGroupsLists {
  std::vector<GemmArgs> products;
  std::vector<TensorView> outputs;
  std::vector<LowRankSegment> runs;
};

struct GemmGroupsArgs {
  TensorView x;                               // [n, K]; of a dx: dy [n, N]
  std::span<const GemmGroup> groups;          // disjoint, ascending, equal shapes
  std::span<const LowRankSegment> runs = {};  // each inside one group
  GemmGroupsLists* lists = nullptr;           // or none
};

// Writes y [n, N], f32 or bf16.
void gemm_groups(Backend& backend, const GemmGroupsArgs& args, TensorView y);

// Writes dx [n, K], f32 or bf16; with accumulate (f32 only) the accumulators start from dx.
void gemm_groups_dx(Backend& backend, const GemmGroupsArgs& args, TensorView dx,
                    bool accumulate = false);

}  // namespace strata::ops
