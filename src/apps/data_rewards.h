// SPDX-License-Identifier: Apache-2.0
// strata data --reward: what a reward makes of some records, without a run and without a model's
// answers: each is rated with the completion that it has, else with an empty one.
#pragma once
#include <vector>

#include "apps/data.h"
#include "data/dataset.h"

namespace strata::apps {

// Prints the rewards of these prompts of the dataset. Throws Error for a record, of all, that lacks
// what the reward reads.
void print_rewards(const DataOptions& options, const data::Dataset& prompts,
                   const std::vector<size_t>& shown, const TextStack& text);

}  // namespace strata::apps
