// SPDX-License-Identifier: Apache-2.0
// Lists of what attention writes to a cache and reads from it, of the sublayer at work
// (model/pass/block_lists.h).
#pragma once
#include <cstddef>
#include <vector>

#include "ops/cache_write.h"
#include "ops/kv_view.h"

namespace strata::model {

struct KvLists {
  std::vector<ops::CacheSegment> cache_runs;
  std::vector<ops::KvRange> ranges;
  std::vector<size_t> range_ends;  // of each sequence
};

}  // namespace strata::model
