// SPDX-License-Identifier: Apache-2.0
// The choice of one token from one row of raw fp32 logits, as ops/choose_tokens.h has it. Pure
// functions of their arguments: any thread, nothing kept between calls. V vocabulary.
#pragma once
#include <cstdint>
#include <span>

#include "ops/choose_tokens.h"

namespace strata::ops::cpu {

// `step_index` is the number of tokens sampled before this one.
int32_t choose_token(std::span<const float> logits, const SamplingParams& params,
                     uint64_t step_index);

// Chooses among the tokens in `allowed` alone (TokenChoice); overwrites the row.
int32_t choose_allowed_token(std::span<float> logits, std::span<const uint32_t> allowed,
                             const SamplingParams& params, uint64_t step_index);

// ids.size() draws with replacement.
void draw_from_row(std::span<const float> logits, float temperature, uint64_t seed,
                   uint64_t first_draw, std::span<int32_t> ids);

// Writes the ids.size() largest logits' ids, largest first, and their logprobs; `lse` points to the
// row's two values as ops::logsumexp writes them. ids.size() <= V.
void write_topk_of_row(std::span<const float> logits, const float* lse, std::span<int32_t> ids,
                       std::span<float> logprobs);

}  // namespace strata::ops::cpu
