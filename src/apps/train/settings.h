// SPDX-License-Identifier: Apache-2.0
// Settings of a run that its options leave open: settle() derives them from the data, the model
// and, of a run that is resumed, from what it recorded, so that they stay what they were even
// where another version would derive others.
#pragma once
#include <string>

#include "apps/train/job.h"

namespace strata::apps {

// The options with all of them set. `recorded`: options of the saved state (state.h), empty of a
// new run. Throws Error where two of the options exclude each other.
TrainOptions settle(const TrainOptions& options, const LoadSpec& spec, const TrainData& data,
                    const std::string& recorded = {});

// What to do about a run of so few steps that it learns little; empty of any other.
std::string few_steps_text(const TrainOptions& settled, int64_t num_steps);

// Peak learning rate where none is given. Of adapters it is lower for wide models, and for batches
// of few examples (0: no limit), whose gradients are noisy.
double default_learning_rate(const std::string& method, int64_t hidden_size, int64_t batch_size);

}  // namespace strata::apps
