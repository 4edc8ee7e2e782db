// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/result_size.h"

#include <variant>

#include "api/result.h"

namespace strata::server {
namespace {

constexpr int64_t kValue = 4;        // bytes of a token id or a logprob
constexpr int64_t kSmallBody = 512;  // the text of a step, a save or a fault; names of metrics
constexpr int64_t kSequenceBytes = sizeof(api::SampledSequence);  // more than its message's fields

}  // namespace

int64_t prompt_table_bytes(const api::Sample& sample) {
  const int64_t values =
      (sample.prompt_logprobs ? 1 : 0) + 2 * (sample.topk_prompt_logprobs + sample.prompt_draws);
  // A target may come with its column, and each position with where its own begin.
  const int64_t targets = 3 * std::ssize(sample.prompt_targets.ids);
  const int64_t rows = targets > 0 ? 2 * (std::ssize(sample.prompt) + 1) : 0;
  return (std::ssize(sample.prompt) * values + targets + rows) * kValue;
}

int64_t most_sampled_bytes(const api::Sample& sample) {
  const int64_t values = 2 + 2 * sample.topk_sample_logprobs;
  return sample.num_samples * (kSequenceBytes + sample.max_tokens * values * kValue);
}

int64_t most_result_bytes(const api::Command& command) {
  int64_t bytes = kFutureBytes + kSmallBody;
  if (const auto* sample = std::get_if<api::Sample>(&command.op))
    bytes += prompt_table_bytes(*sample) + most_sampled_bytes(*sample);
  return bytes;
}

}  // namespace strata::server
