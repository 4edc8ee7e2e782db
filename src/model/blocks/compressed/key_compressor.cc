// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/compressed/key_compressor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "model/blocks/state_segments.h"
#include "model/linear.h"
#include "model/residual.h"
#include "ops/compressor.h"

namespace strata::model {
namespace {

using Config = CompressedAttentionConfig;

int64_t ring_bytes(const Config& c, DType dtype) {
  return Arena::aligned(c.window * c.head_dim * dtype_bytes(dtype));
}
int64_t compressor_bytes(const Config& c, int64_t channels) {
  if (c.ratio == 0) return 0;
  const int64_t rows = ops::compressor_span(c.ratio, c.overlap) * 2;
  return Arena::aligned(rows * projected_width(c, channels) * dtype_bytes(DType::kF32));
}

// Its keys lie in a page behind the entries.
KeyCompressor indexer_compressor(const Pass& pass, const Config& c) {
  const int64_t entries = pass.cache.page_size() / c.ratio;
  return {kIndexerKv,
          kIndexerGate,
          kIndexerBias,
          kIndexerNorm,
          c.index_dim,
          ring_bytes(c, pass.dtype()) + compressor_bytes(c, c.head_dim),
          entries * c.head_dim * dtype_bytes(pass.dtype())};
}

// raw [E, C]
ops::TailRopeArgs make_entry_rope_args(Pass& pass, const BlockContext& context,
                                       const KeyCompressor& part, TensorView raw) {
  ops::TailRopeArgs args =
      rope_args(pass, context, as_head(raw), /*norm=*/true, context.values(part.norm));
  args.positions = make_entry_positions(pass, context.as<Config>().ratio);
  return args;
}

ops::CompressorArgs make_compressor_args(Pass& pass, const BlockContext& context,
                                         const KeyCompressor& part, TensorView kv,
                                         TensorView gate) {
  return {.kv = kv,
          .gate = gate,
          .bias = context.values(part.bias),
          .overlap = context.as<Config>().overlap,
          .segments = make_state_segments(pass, context, part.state_offset)};
}

float indexer_scale(const Config& c) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_heads * c.index_dim)));
}

// What an indexer compares, and what it is made of.
struct IndexerRows {
  TensorView kv, gate;                                   // [T, W] f32
  TensorView raw;                                        // [E, C] f32
  EntryStore keys;                                       // [E, C]
  TensorView q;                                          // [T, N, C], rotated
  TensorView weights;                                    // [T, N] f32
  std::array<TensorView, kCompressedNumLinears> lora_h;  // [T, R], where backward needs it
};

TensorView allocate_scratch_lora_h(const Pass& pass, const BlockContext& context, int key) {
  const int64_t rank = largest_rank(pass.rows, context.layer, context.param(key).target);
  return rank == 0 ? TensorView() : pass.take(pass.dtype(), {pass.num_tokens(), rank});
}

// Gradients of what the loss reads, f32.
struct IndexerGradients {
  TensorView q, weights, keys;
};

// From these to the gradients of the indexer's own parameters.
void indexer_rows_backward(Pass& pass, const BlockContext& context, const IndexerRows& rows,
                           TensorView n, TensorView latent, const IndexerGradients& d) {
  const auto& c = context.as<Config>();
  const auto project_backward = [&](CompressedAttentionKey key, TensorView x, TensorView dy) {
    linear_backward(pass, context, key, x, rows.lora_h[key], dy, {}, false);
  };
  // keys = compressed(kv, gate)
  const TensorView d_kv = pass.take(pass.dtype(), rows.kv.shape);
  const TensorView d_gate = pass.take(pass.dtype(), rows.gate.shape);
  entries_backward(pass, context, indexer_compressor(pass, c),
                   {.kv = rows.kv, .gate = rows.gate, .raw = rows.raw}, d.keys, d_kv, d_gate);
  project_backward(kIndexerKv, n, d_kv);
  project_backward(kIndexerGate, n, d_gate);
  // q = rotated(latent W^T)
  const TensorView d_q_raw = pass.take(pass.dtype(), rows.q.shape);
  ops::tail_rope_backward(pass.backend, rope_args(pass, context, rows.q, /*norm=*/false), d.q,
                          d_q_raw, {});
  project_backward(kIndexerQ, latent,
                   d_q_raw.reshape({d_q_raw.shape[0], c.index_heads * c.index_dim}));
  // weights = n W^T
  project_backward(kIndexerWeights, n, to_compute_dtype(pass, d.weights));
}

// n [T, D], latent [T, Q]
IndexerRows make_indexer_rows(Pass& pass, const BlockContext& context, TensorView n,
                              TensorView latent, bool wants_backward) {
  const auto& c = context.as<Config>();
  const int64_t tokens = pass.num_tokens();
  IndexerRows rows;
  const auto project = [&](CompressedAttentionKey key, TensorView x, TensorView y) {
    if (wants_backward) rows.lora_h[key] = allocate_scratch_lora_h(pass, context, key);
    linear_forward(pass, context, key, x, {}, rows.lora_h[key], y);
  };
  const KeyCompressor part = indexer_compressor(pass, c);
  const Shape shape = {tokens, projected_width(c, c.index_dim)};
  rows.kv = pass.take(DType::kF32, shape);
  rows.gate = pass.take(DType::kF32, shape);
  project(kIndexerKv, n, rows.kv);
  project(kIndexerGate, n, rows.gate);
  rows.raw = compress_raw_entries(pass, context, part, rows.kv, rows.gate);
  rows.keys = make_entries(pass, context, part, rows.raw);
  rows.q = pass.take(pass.dtype(), {tokens, c.index_heads, c.index_dim});
  project(kIndexerQ, latent, rows.q.reshape({tokens, c.index_heads * c.index_dim}));
  ops::tail_rope(pass.backend, rope_args(pass, context, rows.q, /*norm=*/false), rows.q);
  rows.weights = pass.take(DType::kF32, {tokens, c.index_heads});
  project(kIndexerWeights, n, rows.weights);
  return rows;
}

}  // namespace

KeyCompressor main_compressor(const Config& c, DType dtype) {
  return {kCompressorKv,
          kCompressorGate,
          kCompressorBias,
          kCompressorNorm,
          c.head_dim,
          ring_bytes(c, dtype),
          0};
}
int64_t projected_width(const Config& c, int64_t channels) {
  return c.overlap ? 2 * channels : channels;
}
std::vector<StateRing> key_rings(const Config& c, DType dtype) {
  std::vector<StateRing> rings = {
      {.slots = c.window, .row_bytes = c.head_dim * dtype_bytes(dtype)}};
  int64_t offset = ring_bytes(c, dtype);
  for (const int64_t channels : {c.head_dim, c.index_heads > 0 ? c.index_dim : 0}) {
    if (c.ratio == 0 || channels == 0) break;
    rings.push_back({.offset = offset,
                     .slots = ops::compressor_span(c.ratio, c.overlap),
                     .row_bytes = 2 * projected_width(c, channels) * dtype_bytes(DType::kF32)});
    offset += compressor_bytes(c, channels);
  }
  return rings;
}
int64_t key_state_bytes(const Config& c, DType dtype) {
  const StateRing last = key_rings(c, dtype).back();
  return last.offset + Arena::aligned(last.slots * last.row_bytes);
}

ops::TailRopeArgs rope_args(const Pass& pass, const BlockContext& context, TensorView x, bool norm,
                            TensorView weight) {
  const auto& c = context.as<Config>();
  const RopeTable& rope = pass.ropes[c.rope];
  return {.x = x,
          .norm = norm,
          .weight = weight,
          .eps = static_cast<float>(c.eps),
          .positions = pass.positions,
          .cos = rope.cos(),
          .sin = rope.sin()};
}

TensorView allocate_entries(Pass& pass, const Config& c, DType type, int64_t channels) {
  const TensorView most = pass.take(type, {max_new_entries(pass, c.ratio), channels});
  return most.slice_rows(0, num_new_entries(pass, c.ratio));
}

TensorView compress_raw_entries(Pass& pass, const BlockContext& context, const KeyCompressor& part,
                                TensorView kv, TensorView gate) {
  const TensorView raw = allocate_entries(pass, context.as<Config>(), DType::kF32, part.channels);
  ops::compress(pass.backend, make_compressor_args(pass, context, part, kv, gate), raw);
  return raw;
}

EntryStore make_entries(Pass& pass, const BlockContext& context, const KeyCompressor& part,
                        TensorView raw) {
  const auto& c = context.as<Config>();
  const EntryStore store = {.rows = allocate_entries(pass, c, pass.dtype(), part.channels),
                            .ratio = c.ratio,
                            .offset = part.page_offset};
  ops::tail_rope(pass.backend, make_entry_rope_args(pass, context, part, raw), as_head(store.rows));
  store_entries(pass, context, store);
  return store;
}

void entries_backward(Pass& pass, const BlockContext& context, const KeyCompressor& part,
                      const CompressedRows& rows, TensorView d_entries, TensorView d_kv,
                      TensorView d_gate) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView d_raw = allocate_entries(pass, context.as<Config>(), DType::kF32, part.channels);
  ops::tail_rope_backward(pass.backend, make_entry_rope_args(pass, context, part, rows.raw),
                          as_head(d_entries), as_head(d_raw),
                          pass.base_gradient(context.param(part.norm).index));
  ops::compress_backward(pass.backend,
                         make_compressor_args(pass, context, part, rows.kv, rows.gate), d_raw, d_kv,
                         d_gate, pass.base_gradient(context.param(part.bias).index));
}

void run_indexer(Pass& pass, const BlockContext& context, TensorView n, TensorView latent,
                 IndexView<int32_t> selected) {
  const Scratch::Mark mark(pass.backend.scratch());
  const auto& c = context.as<Config>();
  const IndexerRows rows = make_indexer_rows(pass, context, n, latent, /*wants_backward=*/false);
  ops::select_entries(pass.backend,
                      {.q = rows.q,
                       .weights = rows.weights,
                       .segments = make_indexer_segments(pass, context, rows.keys),
                       .ratio = c.ratio,
                       .top_k = c.top_k},
                      selected);
}

void add_indexer_loss_and_gradients(Pass& pass, const BlockContext& context, TensorView n,
                                    TensorView latent, const ops::ListedAttention& attention) {
  CHECK(pass.indexer_loss != nullptr && !pass.cached());
  const Scratch::Mark mark(pass.backend.scratch());
  const auto& c = context.as<Config>();
  const IndexerRows rows = make_indexer_rows(pass, context, n, latent, /*wants_backward=*/true);
  const IndexerGradients d = {.q = pass.take(DType::kF32, rows.q.shape),
                              .weights = pass.take(DType::kF32, rows.weights.shape),
                              .keys = allocate_entries(pass, c, DType::kF32, c.index_dim)};
  ops::indexer_loss(pass.backend,
                    {.q = rows.q,
                     .weights = rows.weights,
                     .keys = rows.keys.rows,
                     .scale = indexer_scale(c),
                     .attention = attention,
                     .segments = make_entry_segments(pass, c.ratio),
                     .ratio = c.ratio,
                     .weight = pass.indexer_loss->weight},
                    pass.indexer_loss->losses,
                    {.d_q = d.q, .d_weights = d.weights, .d_keys = d.keys});
  indexer_rows_backward(pass, context, rows, n, latent, d);
}

}  // namespace strata::model
