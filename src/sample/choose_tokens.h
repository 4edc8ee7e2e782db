// SPDX-License-Identifier: Apache-2.0
// Ops on rows of logits where they lie: tokens chosen from them, and what they say of tokens. What
// a row gives depends on it and on what is asked of it alone. C rows, V vocabulary; logits [C, V]
// f32, lse [C, 2] f32 as ops::logsumexp writes it. Engine thread only.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "sample/sampler.h"
#include "tensor/view.h"

namespace strata::sample {

// What is asked of a row, and its answer.
struct TokenChoice {
  int64_t row = 0;
  SamplingParams params = {};
  uint64_t step_index = 0;       // as choose_token has it
  bool scaled_logprobs = false;  // of the logits divided by the temperature, unless that is 0
  int32_t token = 0;
  float logprob = 0.0f;
  // As many as the largest logits that are asked for; ranked by the raw logits, since divided by a
  // tiny temperature they may be infinite.
  std::vector<int32_t> topk_ids = {};
  std::vector<float> topk_logprobs = {};
  std::string error = {};  // a sentence: there is no answer, or was none before

  [[nodiscard]] bool is_scaled() const {
    return scaled_logprobs && params.temperature != 0.0f && params.temperature != 1.0f;
  }
};

// In parallel. lse may be empty: tokens alone.
void choose_tokens(Backend& backend, TensorView logits, TensorView lse,
                   std::span<TokenChoice* const> choices);

// Of row `row`: draws with replacement as draw_tokens has it, and the drawn tokens' logprobs. Error
// where a logit is not finite.
void draw_tokens(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs);
// Of row `row`, as topk_logprobs has it; Error likewise.
void topk_logprobs(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                   std::span<int32_t> ids, std::span<float> logprobs);

}  // namespace strata::sample
