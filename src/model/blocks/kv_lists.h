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
  std::vector<size_t> range_ends;  // of each sequence, or of what else a range is read by

  void clear_ranges() {
    ranges.clear();
    range_ends.clear();
  }
  // What was added since the last end is read as one.
  void end_ranges() { range_ends.push_back(ranges.size()); }
};

}  // namespace strata::model
