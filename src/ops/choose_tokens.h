// SPDX-License-Identifier: Apache-2.0
// Sampling from rows of logits where they lie: tokens chosen from them, and what they say of
// tokens. What a row gives depends on it and on what is asked of it alone. C rows, V vocabulary;
// logits [C, V] f32, lse [C, 2] f32 as ops::logsumexp writes it. Answers are the host's: the call
// returns when they are there. Wherever logits tie, the lower id comes first. A logit that is NaN
// or infinite is an Error that names its token. Engine thread only.
//
// The choice: changes of logits, then penalties; then all tokens but those that are allowed weigh
// exactly 0, as if the vocabulary had no others, and where none is allowed that is an Error of the
// row. Temperature 0 then takes the argmax. Otherwise, in this order: logits / temperature; top-k
// keeps exactly k tokens; top-p sorts what is left, largest first, and keeps the tokens whose
// cumulative probability before them is < top_p (the first one always); min-p keeps of these the
// tokens whose weight is >= min_p, where the largest weighs 1. The token is then drawn by inverting
// the cumulative distribution at one uniform number, the counter generator's for (seed,
// step_index), over the kept tokens in ascending id. Weights are exp((logit - max) / temperature)
// in fp32 to 3e-7, their sums double in a fixed order.
//
// Penalties are vLLM's (apply_penalties of model_executor/layers/utils.py and csrc/sampler.cu), in
// fp32: a token of the prompt or the answer has its logit divided by `repetition` where that is
// above 0, else multiplied by it (as in HF RepetitionPenaltyLogitsProcessor); then loses
// `frequency` times its count in the answer; then `presence` if it is in the answer.
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
  float min_p = 0.0f;        // 0: off; <= 1
  uint64_t seed = 0;
};

// A logit that is changed before the choice: `add`, a finite number, is added to it (a large
// negative one bans the token).
struct LogitChange {
  int32_t token = 0;
  float add = 0.0f;
};

struct Penalties {
  float repetition = 1.0f;  // > 0
  float frequency = 0.0f;
  float presence = 0.0f;

  [[nodiscard]] bool none() const {
    return repetition == 1.0f && frequency == 0.0f && presence == 0.0f;
  }
};

struct TokenCount {
  int32_t token = 0;
  int32_t count = 0;  // above 0
};
// Counts one more `token` in a list that is ascending by token.
void increment_token_count(std::vector<TokenCount>& counts, int32_t token);
std::vector<TokenCount> counts_of(std::span<const int32_t> tokens);

// The tokens before a choice, of which penalties are. Drafts count as the answer's last. Work grows
// with the different tokens, not with the length of an answer.
struct TokensBefore {
  std::span<const int32_t> prompt = {};     // in any order; once is enough
  std::span<const TokenCount> answer = {};  // each token once
  std::span<const int32_t> drafts = {};
};

// What is asked of a row, and its answer.
struct TokenChoice {
  int64_t row = 0;
  SamplingParams params = {};
  uint64_t step_index = 0;  // number of tokens sampled before this one
  // Changes for this choice alone, which is made from a copy of the row; logprobs stay those of the
  // row as it is. No change, no penalty and no mask: nothing is copied, and no bit differs from a
  // choice without these members.
  std::span<const LogitChange> changes = {};
  Penalties penalties = {};
  TokensBefore before = {};  // read where there is a penalty, and no longer than the op runs
  // Bit i % 32 of word i / 32: token i may be chosen; (V + 31) / 32 words, or none: all may.
  std::span<const uint32_t> allowed = {};
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
  // Whether it is made from a copy of the row.
  [[nodiscard]] bool is_changed() const {
    return !changes.empty() || !penalties.none() || !allowed.empty();
  }
};

// In parallel. lse may be empty: tokens alone.
void choose_tokens(Backend& backend, TensorView logits, TensorView lse,
                   std::span<TokenChoice* const> choices);

// Makes ids.size() draws from row `row`, with replacement, of softmax(logits / temperature), each
// by its own uniform number, those of a stream for (seed, first_draw + i) that no choice uses, and
// the drawn tokens' logprobs. Temperature 0: the argmax. top_k and top_p have no part.
void draw_tokens(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                 const SamplingParams& params, uint64_t first_draw, std::span<int32_t> ids,
                 std::span<float> logprobs);
// Writes the ids of the ids.size() largest logits of row `row`, largest first, and their logprobs;
// ids.size() <= V.
void compute_topk_logprobs(Backend& backend, TensorView logits, TensorView lse, int64_t row,
                           std::span<int32_t> ids, std::span<float> logprobs);

}  // namespace strata::ops
