// SPDX-License-Identifier: Apache-2.0
// What a block keeps of a sequence between passes: entries in the pages of a KV cache, one for
// every `ratio` positions, and a state that belongs to the sequence as a whole. Plain values, from
// which model/cache_layout.h makes offsets.
#pragma once
#include <cstdint>
#include <vector>

namespace strata::model {

// Rows of a sequence's state, each at its position modulo their number: a position's row is written
// over that of `slots` positions before.
struct StateRing {
  int64_t offset = 0;  // bytes from the start of the state
  int64_t slots = 0;
  int64_t row_bytes = 0;
  friend bool operator==(const StateRing&, const StateRing&) = default;
};

struct CacheSpec {
  int64_t entry_bytes = 0;            // of one entry
  int64_t ratio = 1;                  // positions an entry stands for
  int64_t window = 0;                 // positions back that are read at all; 0: every one
  int64_t sequence_bytes = 0;         // besides the pages
  std::vector<StateRing> rings = {};  // what of these drafts may write to and be taken back from
  friend bool operator==(const CacheSpec&, const CacheSpec&) = default;
};

// Where a layer's part is, in bytes from the start of a page and of a sequence's state.
struct CachePlace {
  int64_t page_offset = 0;
  int64_t state_offset = 0;
};

}  // namespace strata::model
