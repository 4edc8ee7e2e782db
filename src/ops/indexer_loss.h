// SPDX-License-Identifier: Apache-2.0
// What trains DeepSeek-V4's indexer (ours; after the warm-up of DeepSeek-V3.2's, arXiv 2512.02556,
// section 2.1): the divergence of its scores from the attention that it replaces, which sees every
// entry. A query at position p sees entries i < (p + 1) / m.
//   a_n(i) = exp(s_ni) / (exp(sink_n) + sum over the window's keys and those entries of exp(s))
//   target(i) = sum_n a_n(i) / sum_j sum_n a_n(j)
//   score(i) = scale sum_h weights_h max(0, q_h . k_i)
//   loss = sum_i target(i) (log target(i) - log softmax(score)(i))
// The target is a constant. A query that sees fewer than two entries has no loss. T tokens, N heads
// of width H, M heads of the indexer of width J, E entries of the batch, K entries that a query
// lists. Dots are as ops/indexer.h has them; what is made of them is double, rounded once. The
// gradient of q and weights is one chain over entries ascending, of a key one over queries and then
// heads ascending, fp32. Segments start at position 0 (training). Engine thread only.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "tensor/index.h"
#include "tensor/view.h"

namespace strata::ops {

struct EntrySegment {
  int64_t begin = 0;  // rows of tokens
  int64_t end = 0;
  int64_t first_entry = 0;  // of the batch's
};

// Attention as it ran, to the entries that were listed.
struct ListedAttention {
  TensorView q;        // [T, N, H] f32 or bf16, dense
  TensorView entries;  // [E, H] of q's type, dense
  TensorView lse;      // [T, N] f32: log of a head's whole sum
  float scale = 1.0f;
  IndexView<int32_t> selected;  // [T, K] as select_entries() writes them
  int64_t top_k = 1;            // K
};

struct IndexerLossArgs {
  TensorView q;        // [T, M, J] f32 or bf16, dense
  TensorView weights;  // [T, M] f32
  TensorView keys;     // [E, J] of q's type, dense
  float scale = 1.0f;
  ListedAttention attention;
  std::span<const EntrySegment> segments;
  int64_t ratio = 1;    // m
  float weight = 1.0f;  // of the loss in the gradients
};

struct IndexerGradients {
  TensorView d_q;        // [T, M, J] f32
  TensorView d_weights;  // [T, M] f32
  TensorView d_keys;     // [E, J] f32
};

// Adds to losses [T]; writes the gradients.
void indexer_loss(Backend& backend, const IndexerLossArgs& args, std::span<float> losses,
                  const IndexerGradients& gradients);

}  // namespace strata::ops
