// SPDX-License-Identifier: Apache-2.0
// What is held for a result from its command's acceptance on is never less than what it takes.
#include "server/tinker/service/result_size.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/result.h"
#include "server/tinker/protocol/results.h"
#include "server/tinker/protocol/tensor.h"

namespace strata::server {
namespace {

int64_t bytes_of(const Response& response) {
  return static_cast<int64_t>(response.num_bytes()) + kFutureBytes;
}

api::TopkTable table(int64_t rows, int64_t k) {
  api::TopkTable out;
  out.k = k;
  out.ids.assign(static_cast<size_t>(rows * k), INT32_MAX);
  out.logprobs.assign(static_cast<size_t>(rows * k), -1.0f);
  return out;
}

api::SampleOutput largest_output(const api::Sample& sample) {
  const auto tokens = static_cast<size_t>(sample.max_tokens);
  api::SampleOutput out;
  for (int64_t i = 0; i < sample.num_samples; ++i) {
    out.sequences.push_back({.tokens = std::vector<int32_t>(tokens, INT32_MAX),
                             .logprobs = std::vector<float>(tokens, -1.0f),
                             .topk = table(sample.max_tokens, sample.topk_sample_logprobs)});
  }
  const int64_t prompt = std::ssize(sample.prompt);
  if (sample.prompt_logprobs) out.prompt_logprobs.assign(sample.prompt.size(), -1.0f);
  out.prompt_topk = table(prompt, sample.topk_prompt_logprobs);
  out.prompt_draws = table(prompt - 1, sample.prompt_draws);
  out.prompt_target_logprobs.assign(sample.prompt_targets.ids.size(), -1.0f);
  return out;
}

TEST(ResultSize, HoldsTheLargestAnswerOfASample) {
  for (const int64_t count : {1, 16}) {
    for (const int64_t tokens : {1, 100, 5000}) {
      for (const int64_t topk : {0, 20}) {
        api::Sample sample;
        sample.prompt.assign(300, 7);
        sample.num_samples = count;
        sample.max_tokens = tokens;
        sample.topk_sample_logprobs = sample.topk_prompt_logprobs = topk;
        sample.prompt_logprobs = topk > 0;
        sample.prompt_draws = topk / 4;
        const api::Command command = {.op = sample};
        EXPECT_GE(most_result_bytes(command),
                  bytes_of(sample_response(largest_output(sample), std::nullopt)))
            << count << " of " << tokens << ", top " << topk;
      }
    }
  }
}

TEST(ResultSize, HoldsTargetsOfAPromptInEitherLayout) {
  for (const bool is_sparse : {false, true}) {
    for (const int64_t columns : {1, 40}) {
      api::Sample sample;
      sample.prompt.assign(200, 7);
      sample.prompt_targets.ids.assign(static_cast<size_t>(200 * columns), 5);
      TensorParts layout;
      layout.shape = {200, columns};
      layout.is_sparse = is_sparse;
      if (is_sparse) {
        layout.crow.assign(201, INT64_MAX);
        layout.col.assign(sample.prompt_targets.ids.size(), INT64_MAX);
      }
      const api::Command command = {.op = sample};
      EXPECT_GE(most_result_bytes(command),
                bytes_of(sample_response(largest_output(sample), layout)))
          << is_sparse << " " << columns;
    }
  }
}

TEST(ResultSize, HoldsAStep) {
  const api::Command command = {.op = api::OptimStep{}};
  const api::StepResult step = {.stepped = true, .grad_norm = 1.23456789e-30, .step = INT64_MAX};
  EXPECT_GE(most_result_bytes(command), bytes_of(optim_response(step)));
}

}  // namespace
}  // namespace strata::server
