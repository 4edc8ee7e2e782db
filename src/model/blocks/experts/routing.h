// SPDX-License-Identifier: Apache-2.0
// The routing of a sparse layer: which experts a token goes to, with which weights, and the order
// of rows in which experts see their tokens. Made once in a forward and kept for backward, also
// where everything else is recomputed. T tokens, E experts, K chosen experts of a token. Engine
// thread only.
#pragma once
#include <cstdint>

#include "model/blocks/block.h"
#include "model/blocks/experts/moe.h"
#include "model/expert_ranks.h"
#include "ops/gemm_groups.h"
#include "ops/router.h"
#include "tensor/index.h"
#include "tensor/view.h"

namespace strata::model {

struct Routing {
  IndexView<int32_t> expert_ids;  // [T * K], best first
  TensorView weights;             // [T * K] f32
  TensorView scores;              // [T, E] f32
  // Rows: the T * K pairs (token, expert) sorted by expert, then by token.
  IndexView<int32_t> token_of_row;
  IndexView<int32_t> row_of_slot;  // of (token, k), flat
  TensorView row_weights;          // [T * K] f32
  TensorView unscaled_weights;     // [T * K] f32, before each expert's number; empty without one
  IndexView<int64_t> expert_ends;  // [E] end row of each expert
  bool is_filled = false;          // filled: forward takes it as it is

  [[nodiscard]] int64_t num_rows() const { return token_of_row.size(); }
};

// Takes the memory from the scratch.
Routing allocate_routing(Pass& pass, const MoeConfig& config);

// Fills all from n [T, D], the experts' normed input, and adds to the pass's loads.
void fill_routing(Pass& pass, const BlockContext& context, TensorView n, Routing& routing);

// How the routing's rows divide among experts and the pass's sequences, which keeps sums over
// tokens independent of how sequences are packed. In scratch; borrows the routing and the pass's
// rows.
ops::GroupedRows group_rows_by_expert(Pass& pass, const Routing& routing);

// Rows of a routing that this rank's experts read: all or, where ranks divide the experts,
// neighbours. Its experts and their rows are counted from the first of each.
struct ExpertRows {
  ops::GroupedRows groups;
  IndexView<int32_t> token_of_row;
  TensorView weights;  // [n] f32
  RowSpan in_routing;
  int64_t most = 0;  // that there might be: what memory is taken for
  // Where the rows of all experts end, a list of the host; where ranks divide them.
  std::span<const int64_t> all_ends = {};

  [[nodiscard]] int64_t size() const { return in_routing.count(); }
  // Those of values [T * K, N] of all experts' rows, dense.
  [[nodiscard]] TensorView slice(TensorView values) const {
    return values.slice_rows(in_routing.first, in_routing.end);
  }
};

// In scratch; borrows the routing, the pass's rows and, until another layer's are made, its lists.
ExpertRows own_expert_rows(Pass& pass, const BlockContext& context, const Routing& routing);
// The most that the experts of this rank may have: each reads a token once.
int64_t most_expert_rows(const Pass& pass, const MoeConfig& config);

// Writes d_logits [T, E] from d_row_weights [T * K] f32.
void routing_backward(Pass& pass, const BlockContext& context, const Routing& routing,
                      TensorView d_row_weights, TensorView d_logits);

}  // namespace strata::model
