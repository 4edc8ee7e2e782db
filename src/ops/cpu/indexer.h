// SPDX-License-Identifier: Apache-2.0
// Kernel of ops/indexer.h for one path: the scores of one query.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/indexer.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/indexer.h: arguments are checked.
void select_entries(CpuBackend& backend, const IndexerArgs& args, IndexView<int32_t> selected);

struct IndexerKernel {
  DType type;
  const void* q;         // [N, H]
  const float* weights;  // [N]
  int64_t num_heads;
  int64_t width;  // H
};

// scores[i] of keys `first`, `first` + stride, ... (elements).
template <typename V>
void compute_index_scores(const IndexerKernel& k, const void* first, int64_t stride, int64_t count,
                          float* scores);

}  // namespace strata::ops::cpu
