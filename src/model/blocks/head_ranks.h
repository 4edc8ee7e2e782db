// SPDX-License-Identifier: Apache-2.0
// What tensor ranks, each with some of the heads, have to do together in attention: norms over all
// heads of a token, and gradients of keys and values of which ranks have copies. T tokens, N heads
// of this rank, H head width. Engine thread only.
#pragma once
#include "model/pass/pass.h"
#include "model/tensor_ranks.h"
#include "ops/attention.h"
#include "ops/rms_norm.h"

namespace strata::model {

// own [T, n, H], not dense, of this rank's heads as [T, N, H] of those of all; in scratch.
[[nodiscard]] TensorView gather_heads_of_ranks(const Pass& pass, const TensorRanks& ranks,
                                               const Deal& heads, TensorView own);
// sums [N] f32, a sum for each head, or empty: `add` adds to those of this rank's heads, [n], and
// then each rank has what all have added.
void add_to_heads_of_ranks(const Pass& pass, const TensorRanks& ranks, const Deal& heads,
                           TensorView sums, FunctionRef<void(TensorView own)> add);

// y [T, N, H] becomes this rank's columns of a norm of raw [T, N, H] over the heads of all ranks.
// `norm` of whole rows [T, all heads] gives its arguments.
using WholeNorm = FunctionRef<ops::RmsNormArgs(TensorView whole)>;
void norm_over_heads_of_ranks(const Pass& pass, const TensorRanks& ranks, const Deal& columns,
                              TensorView raw, WholeNorm norm, TensorView y);
// The backward of norm_over_heads_of_ranks(): writes d_raw from d_y [T, N, H] f32, and adds to
// d_weight of all heads unless it is empty.
void norm_over_heads_of_ranks_backward(const Pass& pass, const TensorRanks& ranks,
                                       const Deal& columns, TensorView raw, WholeNorm norm,
                                       TensorView d_y, TensorView d_raw, TensorView d_weight);

// Heads of queries, some of which a rank has.
struct QueryHeads {
  int64_t num_heads = 0;    // of all ranks
  AxisPart group;           // that read the head of keys of which the rank has a copy
  TensorView sinks = {};    // [num_heads] f32, or empty
  TensorView d_sinks = {};  // likewise: added to
};

// What ops::attention_backward takes and gives, of this rank's heads.
struct AttentionGradients {
  TensorView context, lse, d_context;  // [T, N, H], [T, N] f32, [T, N, H]
  TensorView d_q, d_k, d_v;
};

// ops::attention_backward where ranks have copies of a head of keys: its gradients are sums over
// all queries that read it, which every rank that has a copy makes whole.
void attention_backward_of_copies(const Pass& pass, const TensorRanks& ranks,
                                  const QueryHeads& heads, ops::AttentionArgs args,
                                  const AttentionGradients& gradients);

}  // namespace strata::model
