// Choosing a token from raw fp32 logits. V vocabulary. The rules: temperature 0 takes the largest
// raw logit. Otherwise logits / temperature; top_k keeps exactly k entries; top_p, over the
// probabilities of what is left, keeps tokens whose cumulative probability before them is below p
// (so the crossing token stays, and the top one always). Ties everywhere: the lower id first. The
// draw inverts the cumulative distribution, in order of descending probability, at a uniform number
// that is a function of (seed, index) alone: nothing else in a batch matters. Any thread; allocates
// a [V] list of candidates.
#pragma once
#include <cstdint>
#include <span>

namespace strata::sample {

struct SamplingParams {
  float temperature = 1.0f;  // >= 0
  int64_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // in (0, 1]
  uint64_t seed = 0;
};

// The token at `index` (0 for the first sampled one). Throws Error when no logit is finite or one
// is NaN.
int32_t choose_token(std::span<const float> logits, const SamplingParams& params, uint64_t index);

// Writes the ids of the ids.size() largest logits, descending, ties by lower id. ids.size() <= V.
void top_ids(std::span<const float> logits, std::span<int32_t> ids);

}  // namespace strata::sample
