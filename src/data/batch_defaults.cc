// SPDX-License-Identifier: Apache-2.0
#include "data/batch_defaults.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace strata::data {
namespace {

constexpr int64_t kEpochs = 3;
// What a run goes through where nobody said how often: a large set is gone over once.
constexpr int64_t kManyExamples = 10'000;
constexpr int64_t kManyTokens = 4'000'000;
// Beyond so many steps batches are larger.
constexpr int64_t kManySteps = 2'000;
constexpr int64_t kUsualBatchSize = 8;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The largest power of two that leaves enough steps: small ones learn more from few examples.
int64_t default_batch_size(int64_t num_examples, int64_t epochs) {
  const int64_t visits = num_examples * std::min<int64_t>(epochs, 1'000'000);
  const int64_t most = std::clamp(visits / kManySteps, kUsualBatchSize, kMostBatchSize);
  const int64_t size = std::clamp<int64_t>(visits / kLeastSteps, 1, most);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size)));
}

int64_t epochs_by_amount(int64_t num_examples, int64_t num_tokens) {
  const int64_t by_examples = kManyExamples / num_examples;
  const int64_t by_tokens = kManyTokens / std::max<int64_t>(num_tokens, 1);
  return std::clamp<int64_t>(std::min(by_examples, by_tokens), 1, kEpochs);
}

// The fewest steps that an epoch may have; 0 stands for no limit.
int64_t min_steps_per_epoch(int64_t batch_size, int64_t batch_tokens, int64_t num_examples,
                            int64_t num_tokens) {
  const int64_t by_size = batch_size > 0 ? ceil_div(num_examples, batch_size) : 1;
  const int64_t by_tokens = batch_tokens > 0 ? ceil_div(num_tokens, batch_tokens) : 1;
  // A step may be one example that is longer than the limit.
  return std::min(num_examples, std::max(by_size, by_tokens));
}

int64_t default_epochs(const BatchChoice& given, int64_t num_examples, int64_t num_tokens) {
  const bool is_sized = given.batch_size || given.batch_tokens;
  const int64_t steps =
      is_sized ? min_steps_per_epoch(given.batch_size.value_or(0), given.batch_tokens.value_or(0),
                                     num_examples, num_tokens)
               : num_examples;
  const int64_t enough = std::min(ceil_div(kLeastSteps, steps), kMostEpochs);
  return std::max(epochs_by_amount(num_examples, num_tokens), enough);
}

}  // namespace

BatchChoice fill_batch_defaults(BatchChoice given, int64_t num_examples, int64_t num_tokens) {
  CHECK(num_examples >= 1, num_examples);
  BatchChoice out = given;
  if (!given.epochs) out.epochs = default_epochs(given, num_examples, num_tokens);
  if (!given.batch_size) {
    out.batch_size = given.batch_tokens ? 0 : default_batch_size(num_examples, *out.epochs);
  }
  if (!given.batch_tokens) out.batch_tokens = given.batch_size ? 0 : kBatchTokens;
  return out;
}

}  // namespace strata::data
