// SPDX-License-Identifier: Apache-2.0
// Where compressed attention keeps its keys and entries (blocks/compressed_attention.h): the last
// keys of a sequence in a ring, entries in pages, and the segments of a batch that ops read them
// by. T tokens, H width. Engine thread only.
#pragma once
#include <span>

#include "model/blocks/block.h"
#include "model/pass/pass.h"
#include "ops/indexer.h"
#include "ops/indexer_loss.h"
#include "ops/sparse_attention.h"

namespace strata::model {

// Entries that a pass makes, at most, however its sequences lie to their windows: what scratch is
// taken for. Of the pass in hand exactly num_new_entries.
int64_t max_new_entries(const Pass& pass, int64_t ratio);
int64_t num_new_entries(const Pass& pass, int64_t ratio);
// The position at which each new entry is rotated, its window's first; a list of the pass.
std::span<const int32_t> make_entry_positions(Pass& pass, int64_t ratio);

// Rows of a pass's new entries, and their place in a page: `offset` bytes into the sublayer's part
// for the page's first entry. Without a cache they are where they were computed.
struct EntryStore {
  TensorView rows;  // [E, H] of the compute type, dense
  int64_t ratio = 0;
  int64_t offset = 0;
};
// Writes new entries to the pages, where there are any.
void store_entries(Pass& pass, const BlockContext& context, const EntryStore& store);

// keys [T, H], dense: the pass's own; the ring, of `window` keys, is the first of the sublayer's
// state. entries.rows may be empty. Borrows the pass's lists until the next call.
std::span<const ops::SparseSegment> make_sparse_segments(Pass& pass, const BlockContext& context,
                                                         TensorView keys, int64_t window,
                                                         const EntryStore& entries);
std::span<const ops::IndexerSegment> make_indexer_segments(Pass& pass, const BlockContext& context,
                                                           const EntryStore& entries);
// The segments of whole sequences, whose entries lie where the pass made them.
std::span<const ops::EntrySegment> make_entry_segments(Pass& pass, int64_t ratio);

// Brings the rings up to the pass's last keys; after attention has read them.
void store_keys_in_ring(Pass& pass, const BlockContext& context, TensorView keys, int64_t window);

}  // namespace strata::model
