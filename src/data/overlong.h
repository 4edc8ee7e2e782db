// SPDX-License-Identifier: Apache-2.0
// Examples of more tokens than a run takes.
#pragma once
#include <vector>

#include "data/example.h"

namespace strata::data {

// Its first `max_length` tokens, targets included; num_trained may be 0.
Example cut_example(const Example& example, int64_t max_length);

// Pieces of at most max_length (2 or more) tokens that have all its trained targets once, in order;
// those without any are left out.
std::vector<Example> split_example(const Example& example, int64_t max_length);

}  // namespace strata::data
