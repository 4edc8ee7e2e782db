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

// How drafts are taken back of a state that each row changes as a whole: a pass that reads drafts
// logs what the state was before and each row's inputs, and BlockOps::replay goes through the
// accepted ones again. Nothing by default.
struct ReplaySpec {
  int64_t before_bytes = 0;  // of the state, from its start
  int64_t row_bytes = 0;
  int64_t chunk = 0;  // the last position of each so many may not be a draft's
  friend bool operator==(const ReplaySpec&, const ReplaySpec&) = default;
};

struct CacheSpec {
  int64_t entry_bytes = 0;            // of one entry
  int64_t ratio = 1;                  // positions an entry stands for
  int64_t window = 0;                 // positions back that are read at all; 0: every one
  int64_t sequence_bytes = 0;         // besides the pages
  std::vector<StateRing> rings = {};  // what of these drafts may write to and be taken back from
  ReplaySpec replay = {};
  friend bool operator==(const CacheSpec&, const CacheSpec&) = default;
};

// Where a layer's part is, in bytes from the start of a page and of a sequence's state.
struct CachePlace {
  int64_t page_offset = 0;
  int64_t state_offset = 0;
  int64_t log_offset = 0;  // in the state too, of what is replayed; 0: nothing is
};

}  // namespace strata::model
