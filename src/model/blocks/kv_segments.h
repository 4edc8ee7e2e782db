// SPDX-License-Identifier: Apache-2.0
// The segments of a batch for attention: where each sequence's keys and values lie, in its cache
// pages or where they were computed. Engine thread only.
#pragma once
#include <span>

#include "model/blocks/block.h"
#include "model/pass/pass.h"
#include "ops/attention.h"

namespace strata::model {

// k [T, .., width] and v, dense rows; an empty v is inside k (latent attention). With a cache,
// the new rows are written to the layer's part of the pages first (keys of a page's positions, then
// their values) and attention reads the pages. Borrows the pass's lists until the next call.
std::span<const ops::AttentionSegment> prepare_kv_segments(Pass& pass, const BlockContext& context,
                                                           TensorView k, TensorView v);
// The parts of that, of which the layer and sublayer of `context` matter: rows go to the pages, and
// rows that are there are read.
void store_kv(Pass& pass, const BlockContext& context, TensorView k, TensorView v);
std::span<const ops::AttentionSegment> make_segments_of_stored_kv(Pass& pass,
                                                                  const BlockContext& context,
                                                                  TensorView k, TensorView v);

}  // namespace strata::model
