// SPDX-License-Identifier: Apache-2.0
// How a run cuts its data into steps where its options do not say: batches small enough for at
// least 60 steps, three passes over the data, more over few examples and fewer over many. A pure
// function of the options, and of how much there is to train on.
#pragma once
#include <cstdint>
#include <optional>

namespace strata::data {

struct BatchChoice {
  std::optional<int64_t> batch_size = {};    // examples of a step, at most; 0: any number
  std::optional<int64_t> batch_tokens = {};  // tokens of a step, at most; likewise
  std::optional<int64_t> epochs = {};
};

constexpr int64_t kLeastSteps = 60;     // of a run, where the data are enough for them
constexpr int64_t kFewSteps = 20;       // fewer teach little
constexpr int64_t kMostBatchSize = 32;  // examples
constexpr int64_t kBatchTokens = 8192;  // of long examples a step has fewer
constexpr int64_t kMostEpochs = 10;     // over few examples

// With all of it set; what was set stays. A batch that is given in one of its two limits has no
// other. num_examples >= 1.
BatchChoice fill_batch_defaults(BatchChoice given, int64_t num_examples, int64_t num_tokens);

}  // namespace strata::data
