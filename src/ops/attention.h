// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention over ragged segments: out = softmax(scale * q k^T) v, a query at
// absolute position p seeing keys 0..p of its own sequence, or the last `window` of them: keys j
// with p - window < j <= p (HF sliding_window: the query's own key counts), or those of its chunk
// of `window` positions, from floor(p / window) window on (HF attention_chunk_size). T tokens of
// the batch, N query heads, M key/value heads (query head n reads key/value head n / (N / M)), H
// key width, U value width (any, odd too). Latent attention is M = 1 with values that are the first
// U columns of the keys. With sinks the softmax has one more term, a number a head, that has no
// value (gpt-oss; ops/sparse_attention.h has the same): p_j = exp(s_j) / (exp(sink) + sum_k
// exp(s_k)). With a cap the softmax reads cap tanh(s / cap) of each scaled score s (Gemma 2). Never
// materialises T x T. q, k, v, out and d_out share one type, f32 or bf16; scores, max, sum and the
// output accumulator are fp32; in bf16 mode probabilities are rounded to bf16 before P V and the
// row sum uses the unrounded fp32 ones. Order of summation (the same for training, prefill, chunked
// prefill and decode): key blocks of kKeyBlock positions aligned to absolute position 0, ascending,
// online softmax between blocks; a score is one chain over ascending H (bf16: pairs), a block's P V
// one chain over ascending keys (bf16: pairs) that starts from the rescaled accumulator; the row
// sum has one fixed order, it and the maximum start from the sink; keys beyond the query or before
// its window add exact zero, blocks that no row of an item sees are left out, and a zero result is
// +0. The path amx sums bf16 in groups of 32 (docs/numerics.md): scores from column 0, P V and d_q
// two groups a key block, d_k and d_v over queries from position 0 of their sequence, anew for each
// head. Nothing depends on the ranges of the cache, the other rows, the chunk split or threads, and
// a window no shorter than the sequence has the bits of none. Memory beyond a sequence's last key,
// or before the window of its segment's first row, is never read into a result, even when it holds
// NaN; a value that is not finite may reach queries of its own sequence that do not see it, nothing
// else. Rows of no segment are left as they are. Engine thread only.
#pragma once
#include <algorithm>
#include <limits>
#include <span>

#include "backend/backend.h"
#include "ops/kv_view.h"
#include "tensor/view.h"

namespace strata::ops {

constexpr int64_t kKeyBlock = 64;

struct AttentionSegment {
  int64_t begin = 0;  // rows [begin, end) of q and out
  int64_t end = 0;
  // Absolute position of row `begin`; keys 0 .. first_position + (end - begin) - 1 exist, and are
  // in kv from the first one that row `begin` sees.
  int64_t first_position = 0;
  KvView kv;
};

struct AttentionArgs {
  TensorView q;  // [T, N, H], dense like every tensor here
  std::span<const AttentionSegment> segments;
  int64_t num_kv_heads = 0;
  float scale = 1.0f;
  int64_t value_dim = 0;   // U; 0: H
  int64_t window = 0;      // keys that a query sees, at most; 0: all
  bool in_chunks = false;  // they begin where its chunk of so many positions does
  TensorView sinks = {};   // [N] f32, as large as scaled scores are; empty: none
  float score_cap = 0.0f;  // no scaled score passes it; 0: none

  [[nodiscard]] int64_t key_width() const { return q.shape[2]; }
  [[nodiscard]] int64_t value_width() const { return value_dim == 0 ? q.shape[2] : value_dim; }
  // First key that the query at `position` sees.
  [[nodiscard]] int64_t first_key(int64_t position) const {
    if (window == 0) return 0;
    if (in_chunks) return position / window * window;
    return std::max<int64_t>(0, position - window + 1);
  }
  // First query that sees no key before `key_end`, which is at least 1.
  [[nodiscard]] int64_t first_query_beyond(int64_t key_end) const {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (window == 0 || window > kMost - key_end) return kMost;
    return in_chunks ? ((key_end - 1) / window + 1) * window : key_end - 1 + window;
  }
};

// Writes out [T, N, U] and, unless empty, lse [T, N] f32 (log of the sum of exp of scaled and
// capped scores, and of the sink; backward needs it).
void attention(Backend& backend, const AttentionArgs& args, TensorView out, TensorView lse);

// Segments start at position 0 and their k, v are whole (training). Recomputes probabilities from
// lse. delta[t, n] = sum_h d_out * out in fp32, by the chain of d_out v^T: a query that sees one
// key has gradients of exactly zero. Writes d_q [T, N, H], d_k [T, M, H] and d_v [T, M, U]: f32 or
// bf16 each, rows as q's: row `begin + j` is position j. P and dS = P (d_out v^T - delta) are
// rounded to bf16 before products in bf16 mode; scale is applied to the finished sums. With a cap
// dS is times its slope, 1 - tanh(s / cap)^2, before it is rounded. d_k and d_v sum over the
// group's query heads ascending, then ascending queries (bf16: pairs of one sequence and head); d_q
// over ascending keys. A pair that the window hides adds exact zero. Adds to d_sinks [N] f32 unless
// it is empty, d_sink = -sum_t exp(sink - lse_t) delta_t: one chain over the segments and their
// rows, ascending, from the stored value. Memory grows with T, not with its square.
void attention_backward(Backend& backend, const AttentionArgs& args, TensorView out, TensorView lse,
                        TensorView d_out, TensorView d_q, TensorView d_k, TensorView d_v,
                        TensorView d_sinks = {});

// What a kind of backend is given for the backward (ops/rows.h).
struct AttentionGradients {
  TensorView out;           // [T, N, U]
  TensorView lse;           // [T, N]
  TensorView d_out;         // [T, N, U]
  TensorView d_q;           // [T, N, H]
  TensorView d_k;           // [T, M, H]
  TensorView d_v;           // [T, M, U]
  TensorView d_sinks = {};  // [N]; empty: not wanted
};

}  // namespace strata::ops
