// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's indexer: which K entries a query sees, of those that stand for tokens up to its
// own.
//   score(t, i) = sum_h weights_th max(0, q_th . k_i), i < (p + 1) / m for a query at position p
// The K best; equal scores: the lower entry first; where no more than K may be seen, all, without
// scores. The choice has no gradient. A constant factor of the scores moves no choice and is left
// out. Source: HF modeling_deepseek_v4.py, DeepseekV4Indexer and DeepseekV4IndexerScorer.
// T tokens, N heads of width H, K entries. fp32; a dot is 16 interleaved partial sums and one tree,
// the sum over heads one chain. A score that is not a number comes last. Engine thread only.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "ops/kv_view.h"
#include "tensor/index.h"
#include "tensor/view.h"

namespace strata::ops {

struct IndexerSegment {
  int64_t begin = 0;  // rows
  int64_t end = 0;
  int64_t first_position = 0;
  KvView keys;  // by entry, of q's type
};

struct IndexerArgs {
  TensorView q;        // [T, N, H] f32 or bf16, dense
  TensorView weights;  // [T, N] f32
  std::span<const IndexerSegment> segments;
  int64_t ratio = 1;  // m
  int64_t top_k = 1;  // K

  // Entries that a row of a segment may see.
  [[nodiscard]] int64_t num_entries(const IndexerSegment& segment, int64_t row) const {
    return (segment.first_position + row - segment.begin + 1) / ratio;
  }
};

// Writes selected [T, K]: entries ascending, then -1.
void select_entries(Backend& backend, const IndexerArgs& args, IndexView<int32_t> selected);

}  // namespace strata::ops
