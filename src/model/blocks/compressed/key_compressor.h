// SPDX-License-Identifier: Apache-2.0
// The compressors of compressed attention (blocks/compressed_attention.h): what makes entries of a
// layer's tokens, once for attention and, where the layer has an indexer, once for its keys; and
// the indexer's list. T tokens, W channels of a compressor's projections, C of its entries, E
// entries of the pass, Q width of the queries' latent, K entries that a query sees. Engine thread
// only.
#pragma once
#include <span>
#include <vector>

#include "model/blocks/compressed/compressed_attention.h"
#include "model/blocks/compressed/key_entries.h"
#include "model/blocks/head_views.h"
#include "ops/indexer_loss.h"
#include "ops/tail_rope.h"

namespace strata::model {

struct KeyCompressor {
  CompressedAttentionKey kv, gate, bias, norm;
  int64_t channels;      // C
  int64_t state_offset;  // in the sublayer's state, behind the ring of keys
  int64_t page_offset;   // in the sublayer's part of a page
};
KeyCompressor main_compressor(const CompressedAttentionConfig& c, DType dtype);

// Outputs of a compressor's two projections.
int64_t projected_width(const CompressedAttentionConfig& c, int64_t channels);
// The sublayer's state of a sequence: the ring of keys, and those of the compressors' last rows.
std::vector<StateRing> key_rings(const CompressedAttentionConfig& c, DType dtype);
int64_t key_state_bytes(const CompressedAttentionConfig& c, DType dtype);

// Rotation of x [T, N, H] at its rows' own positions.
ops::TailRopeArgs rope_args(const Pass& pass, const BlockContext& context, TensorView x, bool norm,
                            TensorView weight = {});

// Rows for the entries of the pass, as many as lengths alone say, of which the first are used.
TensorView allocate_entries(Pass& pass, const CompressedAttentionConfig& c, DType type,
                            int64_t channels);
// The entries before their norm, [E, C] f32, from the scratch. Brings the state up to date.
TensorView compress_raw_entries(Pass& pass, const BlockContext& context, const KeyCompressor& part,
                                TensorView kv, TensorView gate);
// The entries as attention reads them, in the scratch, and in the pages where there are any.
EntryStore make_entries(Pass& pass, const BlockContext& context, const KeyCompressor& part,
                        TensorView raw);

// What forward made of a compressor.
struct CompressedRows {
  TensorView kv;    // [T, W] f32
  TensorView gate;  // [T, W] f32
  TensorView raw;   // [E, C] f32
};
// d_entries [E, C] f32. Writes d_kv and d_gate [T, W] of the compute type.
void entries_backward(Pass& pass, const BlockContext& context, const KeyCompressor& part,
                      const CompressedRows& rows, TensorView d_entries, TensorView d_kv,
                      TensorView d_gate);

// Which entries each query sees, [T, K]; n [T, D], latent [T, Q]. The keys that the indexer
// compares are stored as entries are. Nothing here has a gradient.
void run_indexer(Pass& pass, const BlockContext& context, TensorView n, TensorView latent,
                 IndexView<int32_t> selected);

// The loss of the pass's indexer_loss: adds it, and accumulates the gradients of the indexer's own
// parameters alone. n and latent are constants, and so is the attention.
void add_indexer_loss_and_gradients(Pass& pass, const BlockContext& context, TensorView n,
                                    TensorView latent, const ops::ListedAttention& attention);

}  // namespace strata::model
