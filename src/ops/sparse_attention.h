// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's attention: a query sees the keys of its window (itself and window - 1 before it)
// and entries that stand for m earlier tokens each; all heads share keys, which are values too; and
// the softmax has one more term, a number a head (sink), that has no value. A query at position p
// sees entry i where (i + 1) m <= p + 1, all of these or those listed for it. T tokens, N heads, H
// head width, K listed entries of a query, E entries of the batch.
//   p_j = exp(s_j) / (exp(sink) + sum_k exp(s_k)), s_j = scale q . k_j, out = sum_j p_j k_j
// Source: HF modeling_deepseek_v4.py, eager_attention_forward. q, keys, out and d_out share one
// type, f32 or bf16; scores, max, sum and accumulators are fp32; in bf16 mode probabilities are
// rounded to bf16 before P V and the row sum uses the unrounded ones. Order of summation: a query's
// keys in blocks of 64, the window's ascending and then the entries ascending, counted from the
// window's first; otherwise as in ops/attention.h, max and sum starting from the sink. It depends
// on the query's position and entries alone, so training, prefill, chunks and decode agree to the
// bit. Engine thread only.
#pragma once
#include <algorithm>
#include <span>

#include "backend/backend.h"
#include "ops/kv_view.h"
#include "tensor/index.h"
#include "tensor/view.h"

namespace strata::ops {

struct SparseSegment {
  int64_t begin = 0;  // rows [begin, end) of q and out
  int64_t end = 0;
  int64_t first_position = 0;  // of row `begin`
  KvView window;               // by position; keys that no row's window has need no range
  KvView entries;              // by the entry's index
  int64_t first_entry = 0;     // row of its entry 0 among the batch's entries (backward)
};

struct SparseAttentionArgs {
  TensorView q;      // [T, N, H], dense
  TensorView sinks;  // [N] f32
  std::span<const SparseSegment> segments;
  float scale = 1.0f;
  int64_t window = 0;  // keys, the query's own among them; at least 1
  int64_t ratio = 0;   // m; 0: no entries
  // [T, K] entries that each query sees, ascending, -1 after the last; empty: all that it may.
  IndexView<int32_t> selected = {};
  int64_t top_k = 0;  // K

  [[nodiscard]] int64_t num_heads() const { return q.shape[1]; }
  [[nodiscard]] int64_t width() const { return q.shape[2]; }
  [[nodiscard]] int64_t first_key(int64_t position) const {
    return std::max<int64_t>(0, position - window + 1);
  }
  [[nodiscard]] int64_t num_entries(int64_t position) const {
    return ratio == 0 ? 0 : (position + 1) / ratio;
  }
};

// Writes out [T, N, H] and, unless empty, lse [T, N] f32 (log of the whole sum, the sink's too).
void sparse_attention(Backend& backend, const SparseAttentionArgs& args, TensorView out,
                      TensorView lse);

// Segments start at position 0 (training). Writes d_q [T, N, H] f32 or bf16, d_keys [T, H] f32 and
// d_entries [E, H] f32 (empty without entries), each a sum over queries ascending, of a query over
// its heads ascending (bf16: pairs): those of dS q, then those of P d_out. Adds to d_sinks [N] f32
// unless it is empty: one chain over ascending tokens from the stored value. P and dS are rounded
// to bf16 before products in bf16 mode; scale is applied to a query's finished sum.
void sparse_attention_backward(Backend& backend, const SparseAttentionArgs& args, TensorView out,
                               TensorView lse, TensorView d_out, TensorView d_q, TensorView d_keys,
                               TensorView d_entries, TensorView d_sinks);

// What a kind of backend is given for the backward (ops/rows.h).
struct SparseGradients {
  TensorView out;
  TensorView lse;
  TensorView d_out;
  TensorView d_q;
  TensorView d_keys;
  TensorView d_entries;
};

}  // namespace strata::ops
