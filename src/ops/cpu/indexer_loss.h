// SPDX-License-Identifier: Apache-2.0
// Kernels of ops/indexer_loss.h for one path.
#pragma once
#include "ops/cpu/simd.h"
#include "ops/indexer_loss.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

// The CPU behind ops/indexer_loss.h: arguments are checked.
void indexer_loss(CpuBackend& backend, const IndexerLossArgs& args, std::span<float> losses,
                  const IndexerGradients& gradients);

// The heads of one query.
struct QueryHeads {
  DType type;
  const void* q;  // [num_heads, width]
  int64_t num_heads;
  int64_t width;
};

// dots[i, n] = q_n . keys_i of `count` keys, one behind the other.
template <typename V>
void compute_query_key_dots(const QueryHeads& query, const void* keys, int64_t count, float* dots);

// y += a x
template <typename V>
void axpy(DType type, float a, const void* x, int64_t width, float* y);

}  // namespace strata::ops::cpu
