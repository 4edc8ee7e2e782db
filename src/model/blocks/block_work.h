// SPDX-License-Identifier: Apache-2.0
// BlockWork: what a block costs, for whoever quotes a speed or weighs what is recomputed. Plain
// values; any thread.
#pragma once
#include <array>
#include <cstdint>

namespace strata::model {

struct Pass;

// Keys of a kind of their own that a query sees besides the others, none further back than `window`
// positions.
struct WindowWork {
  double pair_flops = 0.0;         // of a query and a position
  double pair_exponentials = 0.0;  // likewise
  int64_t window = 0;
};

// What speeds are counted against, besides the matrices (rows say theirs): the work of a token
// wherever it stands, that of one query and one key that it sees, and how far it sees.
struct BlockWork {
  double token_flops = 0.0;
  double token_backward_flops = 0.0;
  double pair_flops = 0.0;
  double executed_pair_flops = 0.0;  // where the form of the computation does more than it asks for
  double pair_exponentials = 0.0;    // one of each head that weighs the key
  int64_t window = 0;                // 0: every earlier position
  bool in_chunks = false;            // it sees its chunk of so many positions, as far as itself
  std::array<WindowWork, 2> windows = {};
};

// Positions that queries [begin, end) of a causal sequence see together, each at most `window` of
// them (0: all), or those of its chunk.
double num_query_key_pairs(int64_t begin, int64_t end, int64_t window, bool in_chunks = false);
// Forward of a block's attention, as it is computed, over the sequences of a pass.
double executed_attention_flops(const Pass& pass, const BlockWork& work);

}  // namespace strata::model
