// SPDX-License-Identifier: Apache-2.0
// The per-head products of latent attention in its absorbed form: kv_b_proj is never applied to the
// cache; its key rows [P, C] of a head turn that head's query into latent space, and its value rows
// [U, C] turn the latent context into the head's context. With an adapter on kv_b_proj (W + s B A,
// B head by head like W): q' = q W + (s q B) A and context = c W^T + (s c A^T) B^T, the low-rank
// term continuing the accumulator. T tokens, N heads, P nope width, C latent width, U value width,
// R rank, G = C + rope width. Engine thread only.
#pragma once
#include "model/blocks/block.h"
#include "model/blocks/head_views.h"
#include "model/pass/pass.h"

namespace strata::model {

// q[:, :, :C] = the nope part of q_raw [T, N, P + ..] in latent space; q [T, N, G].
void absorb_queries(Pass& pass, const BlockContext& context, TensorView q_raw, TensorView q);

// expanded [T, N, U] from latent_context [T, N, C].
void expand_context(Pass& pass, const BlockContext& context, TensorView latent_context,
                    TensorView expanded);

// What the adapters' gradients need of both products: [T, N, R] each, or empty without adapters.
struct HeadLowRank {
  TensorView q_h;        // s q B
  TensorView d_q_h;      // its gradient times s
  TensorView context_h;  // s c A^T
  TensorView d_context_h;
};

// Takes h from the scratch.
HeadLowRank allocate_head_low_rank(Pass& pass, const BlockContext& context);

// d_latent_context [T, N, C] from d_context [T, N, U]; fills the context part of h.
void expand_context_backward(Pass& pass, const BlockContext& context, TensorView latent_context,
                             TensorView d_context, const HeadLowRank& h,
                             TensorView d_latent_context);

// d_q_raw[:, :, :P] from d_q [T, N, G] of the compute type; fills the query part of h.
void absorb_queries_backward(Pass& pass, const BlockContext& context, TensorView q_raw,
                             TensorView d_q, const HeadLowRank& h, TensorView d_q_raw);

// What the pass accumulates of kv_b_proj: the base weight's gradient, and those of adapters. A's
// sums run sequence by sequence, of each first the queries' and then the contexts' terms, over
// (token, head) ascending.
void add_kv_b_gradients(Pass& pass, const BlockContext& context, TensorView q_raw, TensorView d_q,
                        TensorView latent_context, TensorView d_context, const HeadLowRank& h);

// Heads of all tensor ranks together.
int64_t num_heads_of_ranks(const BlockContext& context);

}  // namespace strata::model
