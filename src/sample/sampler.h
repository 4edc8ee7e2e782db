// SPDX-License-Identifier: Apache-2.0
// The choice of one token from one row of raw fp32 logits. Pure functions of their arguments: any
// thread, nothing kept between calls, so a row's choice depends on nothing else in the batch. V
// vocabulary. Wherever logits tie, the lower id comes first. A logit that is NaN or infinite is an
// Error that names its token.
//
// choose_token: temperature 0 takes the argmax. Otherwise, in this order: logits / temperature;
// top-k keeps exactly k tokens; top-p sorts what is left, largest first, and keeps the tokens whose
// cumulative probability before them is < top_p (the first one always). The token is then drawn by
// inverting the cumulative distribution at one uniform number, the counter generator's for (seed,
// step_index), over the kept tokens in ascending id. Weights are
// exp((logit - max) / temperature) in fp32 to 3e-7, their sums double in a fixed order.
#pragma once
#include <cstdint>
#include <span>

namespace strata::sample {

struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0: greedy
  int64_t top_k = 0;         // <= 0 or >= V: off
  float top_p = 1.0f;        // > 0; >= 1: off
  uint64_t seed = 0;
};

// `step_index` is the number of tokens sampled before this one.
int32_t choose_token(std::span<const float> logits, const SamplingParams& params,
                     uint64_t step_index);

// ids.size() draws with replacement from softmax(logits / temperature), each by its own uniform
// number, those of a stream for (seed, first_draw + i) that choose_token does not use. Temperature
// 0: the argmax.
void draw_tokens(std::span<const float> logits, float temperature, uint64_t seed,
                 uint64_t first_draw, std::span<int32_t> ids);

// Writes the ids.size() largest logits' ids, largest first, and their logprobs; `lse` points to the
// row's two values as ops::logsumexp writes them. ids.size() <= V.
void topk_logprobs(std::span<const float> logits, const float* lse, std::span<int32_t> ids,
                   std::span<float> logprobs);

}  // namespace strata::sample
