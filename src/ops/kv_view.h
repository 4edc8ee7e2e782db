// SPDX-License-Identifier: Apache-2.0
// KvView: keys and values of one sequence in one layer, in ranges of positions; borrows. A range
// holds positions [begin, end) side by side: a position's keys are [N_kv, H] contiguous at
// keys + (pos - begin) * position_stride elements; values alike, and may lie inside the keys
// (values = keys: latent attention). Ranges ascend, are not empty and do not overlap; positions
// that no query may see need no range. A page of a cache is a range; a contiguous cache, or the K
// and V of a training batch, is the case of one long range.
#pragma once
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace strata::ops {

struct KvRange {
  void* keys = nullptr;
  void* values = nullptr;
  int64_t begin = 0;  // positions
  int64_t end = 0;
};

struct KvView {
  std::span<const KvRange> ranges;
  int64_t position_stride = 0;  // elements
};

}  // namespace strata::ops
