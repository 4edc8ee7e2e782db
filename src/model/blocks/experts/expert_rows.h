// SPDX-License-Identifier: Apache-2.0
// The rows that this rank's experts of a layer read, and how these come from tokens and go back:
// all rows of a routing; where expert ranks run the same sequences, those whose experts are here;
// or where they run sequences of their own, those that all ranks' tokens send here
// (row_exchange.h). T tokens, K chosen experts of a token, E experts, n rows. Engine thread only.
#pragma once
#include <cstdint>
#include <span>

#include "model/blocks/experts/routing.h"
#include "model/expert_ranks.h"
#include "model/pass/gradient_turns.h"
#include "ops/gemm_groups.h"

namespace strata::model {

class RowExchange;

// Sorted by expert and in each by token. This rank's experts are counted from the first of them.
struct ExpertRows {
  ops::GroupedRows groups;
  IndexView<int32_t> token_of_row;  // [n]
  TensorView weights;               // [n] f32
  int64_t count = 0;                // n
  int64_t most = 0;                 // that there might be: what memory is taken for
  // Which rows of the routing these are, and where those of all experts end, a list of the host;
  // where ranks run the same sequences.
  RowSpan in_routing = {};
  std::span<const int64_t> all_ends = {};
  const RowExchange* exchange = nullptr;  // where each runs its own

  // Memory for these rows, of as many as there might be.
  [[nodiscard]] TensorView take(const Pass& pass, DType type, int64_t cols) const;
  // Those of x [T, N], in scratch; or where the rows of x before are no longer wanted, in y.
  [[nodiscard]] TensorView gather(const Pass& pass, const Routing& routing, TensorView x) const;
  void gather(const Pass& pass, const Routing& routing, TensorView x, TensorView y) const;
  // Where their part of `values` [T * K, N] is made: there or, where it goes to other ranks, in
  // scratch.
  [[nodiscard]] TensorView take_part(const Pass& pass, TensorView values) const;
  // values [T * K, N], of which `part` is these rows', become what their ranks have of all.
  void bring_home(const Pass& pass, TensorView part, TensorView values, int64_t tag) const;
};

// In scratch; borrows the routing, the pass's rows and, until another layer's are made, its lists.
// What ranks tell each other of their rows has the tag.
ExpertRows own_expert_rows(Pass& pass, const BlockContext& context, const Routing& routing,
                           int64_t tag);
// The turn with the gradients of this rank's experts of a layer, where other ranks add to them too.
Turn turn_with_experts(const Pass& pass, const BlockContext& context);
// The most that the experts of this rank may have: each reads a token once.
int64_t most_expert_rows(const Pass& pass, const MoeConfig& config);

// How the routing's rows divide among experts and the pass's sequences, which keeps sums over
// tokens independent of how sequences are packed. In scratch; borrows the routing and the pass's
// rows.
ops::GroupedRows group_rows_by_expert(Pass& pass, const Routing& routing);

}  // namespace strata::model
