// SPDX-License-Identifier: Apache-2.0
// What a pass leaves in a cache: rows copied to where pages, rings and states keep them. T rows.
// Engine thread only; bytes move as they are.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

// Rows [begin, end) of x go to `to`, one behind the other.
struct CacheSegment {
  int64_t begin = 0;
  int64_t end = 0;
  void* to = nullptr;
};

// x [T, width] of any type; a row takes width elements in the cache. Runs write apart.
void cache_write(Backend& backend, TensorView x, std::span<const CacheSegment> runs);

}  // namespace strata::ops
