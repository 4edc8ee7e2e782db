// SPDX-License-Identifier: Apache-2.0
// Sampling from rows of logits where they lie: tokens chosen from them, and what they say of
// tokens. What a row gives depends on it and on what is asked of it alone. C rows, V vocabulary;
// logits [C, V] f32, lse [C, 2] f32 as ops::logsumexp writes it. Answers are the host's: the call
// returns when they are there. Wherever logits tie, the lower id comes first. A logit that is NaN
// or infinite is an Error that names its token. Engine thread only.
//
// The choice: temperature 0 takes the argmax. Otherwise, in this order: logits / temperature; top-k
// keeps exactly k tokens; top-p sorts what is left, largest first, and keeps the tokens whose
// cumulative probability before them is < top_p (the first one always). The token is then drawn by
// inverting the cumulative distribution at one uniform number, the counter generator's for (seed,
// step_index), over the kept tokens in ascending id. Weights are exp((logit - max) / temperature)
// in fp32 to 3e-7, their sums double in a fixed order.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

struct SamplingParams {
  float temperature = 1.0f;  // >= 0; 0: greedy
  int64_t top_k = 0;         // <= 0 or >= V: off
  float top_p = 1.0f;        // > 0; >= 1: off
  uint64_t seed = 0;
};

// A logit that is changed before the choice: `add`, a finite number, is added to it (a large
// negative one bans the token).
struct LogitChange {
  int32_t token = 0;
  float add = 0.0f;
};

// What is asked of a row, and its answer.
struct TokenChoice {
  int64_t row = 0;
  SamplingParams params = {};
  uint64_t step_index = 0;  // number of tokens sampled before this one
  // Of this choice alone, which is made from a copy of the row; logprobs stay those of the row as
  // it is. None: nothing is copied, and no bit differs from a choice without this member.
  std::span<const LogitChange> changes = {};
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

// Of row `row`: ids.size() draws with replacement from softmax(logits / temperature), each by its
// own uniform number, those of a stream for (seed, first_draw + i) that no choice uses, and the
// drawn tokens' logprobs. Temperature 0: the argmax. top_k and top_p have no part.
void draw_tokens(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs);
// Of row `row`: the ids.size() largest logits' ids, largest first, and their logprobs; ids.size()
// <= V.
void topk_logprobs(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                   std::span<int32_t> ids, std::span<float> logprobs);

}  // namespace strata::ops
