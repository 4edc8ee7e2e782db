// SPDX-License-Identifier: Apache-2.0
// The routing of a sparse layer: which experts a token goes to, with which weights, and the order
// of rows in which experts see their tokens. Made once in a forward and kept for backward, also
// where everything else is recomputed. T tokens, E experts, K chosen experts of a token. Engine
// thread only.
#pragma once
#include <cstdint>

#include "backend/arena.h"
#include "model/blocks/block.h"
#include "model/blocks/experts/moe.h"
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

// Whole numbers in tensor memory, of the scratch.
template <typename T>
IndexView<T> take_indices(Scratch& scratch, int64_t count, ScratchTag tag) {
  return {scratch.take(count * static_cast<int64_t>(sizeof(T)), tag), count};
}

// Takes the memory from the scratch.
Routing allocate_routing(Pass& pass, const MoeConfig& config);

// Fills all from n [T, D], the experts' normed input, and adds to the pass's loads.
void fill_routing(Pass& pass, const BlockContext& context, TensorView n, Routing& routing);

// Writes d_logits [T, E] from d_row_weights [T * K] f32.
void routing_backward(Pass& pass, const BlockContext& context, const Routing& routing,
                      TensorView d_row_weights, TensorView d_logits);

}  // namespace strata::model
