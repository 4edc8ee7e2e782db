// SPDX-License-Identifier: Apache-2.0
// The choice of experts: from a router's logits to the chosen experts of each token and their
// weights, and back. T tokens, E experts, K chosen, G groups. Sources: HF modeling_qwen3_moe.py,
// Qwen3MoeTopKRouter; modeling_deepseek_v2.py, DeepseekV2TopkRouter; modeling_deepseek_v3.py,
// DeepseekV3TopkRouter; modeling_deepseek_v4.py,
// DeepseekV4TopKRouter and DeepseekV4HashRouter. Scores are fp32. Equal scores: the lower id first.
// A token's choice depends on its own logits alone, or where it is given, on nothing here.
// Order of summation, the same on every path: softmax takes off the row's maximum, exp is fp32, its
// sum one double chain over ascending experts, each quotient is made in double and rounded once;
// sqrt(softplus) is double, rounded once. Chosen scores are summed in double in the order of the
// choice, and a weight is score * (scale / sum), in double, rounded once. Backward is double
// throughout, its one sum a chain in the order of the choice, and rounds each d_logit once. Engine
// thread only.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "tensor/index.h"
#include "tensor/view.h"

namespace strata::ops {

// kSqrtSoftplus: sqrt(log(1 + exp(l))). kLogit: the logit itself, of which a chosen expert's weight
// is the sigmoid, without norm, scale or bias: scores beyond 17 would all be the same 1 (HF
// modeling_llama4.py, Llama4Router).
enum class RouterScores : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus, kLogit };

struct RouterArgs {
  RouterScores scores = RouterScores::kSoftmax;
  int64_t top_k = 1;
  bool norm = false;       // the chosen scores are divided by their sum (but softmax: plus 1e-20)
  double scale = 1.0;      // then multiplied by this
  TensorView bias;         // [E] f32 or empty: added to the scores for the choice only
  int64_t num_groups = 1;  // experts in equal groups, of which the top_groups with the largest sum
  int64_t top_groups = 1;  // of their two best (biased) scores take part; 1 of 1: no groups
  bool one_best = false;   // the groups with the largest score instead (DeepSeek-V2)
};

// logits [T, E] f32 become scores in place: softmax over all experts, or each one's own. Writes
// expert_ids [T * K] (best first) and weights [T, K] f32.
void route(Backend& backend, const RouterArgs& args, TensorView logits,
           IndexView<int32_t> expert_ids, TensorView weights);

// The same where the experts are given (a hash layer's): expert_ids [T * K], of each token all
// different, are read; bias and groups have no part.
void route_to_given_experts(Backend& backend, const RouterArgs& args, TensorView logits,
                            IndexView<int32_t> expert_ids, TensorView weights);

// expert_ids [T * K] of a table [V, K] f32 of whole numbers by token (a hash layer's); tokens are a
// list of the host.
void look_up_experts(Backend& backend, TensorView table, std::span<const int32_t> tokens,
                     IndexView<int32_t> expert_ids);

// The order of rows in which experts see their tokens: the T * K pairs (token, k), which are the
// slots, sorted by expert and then by token.
struct RouteRows {
  IndexView<int32_t> token_of_row;  // [T * K]
  IndexView<int32_t> row_of_slot;   // [T * K]
  TensorView row_weights;           // [T * K] f32: each slot's weight, at its row
  IndexView<int64_t> expert_ends;   // [E] end row of each expert
};
void sort_routes(Backend& backend, int64_t top_k, IndexView<int32_t> expert_ids, TensorView weights,
                 const RouteRows& rows);

// bias [E] f32: an expert with fewer rows than the mean of `loads` [E], a list of the host, moves
// up by `rate`, one with more down, one with as many not at all. Whole numbers are compared; the
// step is one fp32 addition of the rounded rate. Source: DeepSeek-V3, section 2.1.2.
void balance_bias(Backend& backend, std::span<const int64_t> loads, double rate, TensorView bias);

// Writes d_logits [T, E], f32 or bf16, from d_weights [T, K] f32. The choice itself has no
// gradient.
void route_backward(Backend& backend, const RouterArgs& args, TensorView scores,
                    IndexView<int32_t> expert_ids, TensorView d_weights, TensorView d_logits);

}  // namespace strata::ops
