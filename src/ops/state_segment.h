// SPDX-License-Identifier: Apache-2.0
// StateSegment: the rows of one sequence in a flat batch, for ops that carry a state from row to
// row, and where that state is kept between passes. Plain values.
#pragma once
#include <cstdint>

namespace strata::ops {

// Segments of a batch share no rows; rows of no segment are left as they are.
struct StateSegment {
  int64_t begin = 0;  // rows [begin, end)
  int64_t end = 0;
  int64_t first_position = 0;  // of row `begin`
  // What the sequence's earlier rows left, brought up to row end - 1: the op says how many bytes.
  // What it holds before position 0 is not read. Null: first_position is 0, and nothing is kept.
  void* state = nullptr;
};

}  // namespace strata::ops
