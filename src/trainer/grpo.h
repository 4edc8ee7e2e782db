// SPDX-License-Identifier: Apache-2.0
// GRPO (arXiv 2402.03300) and its kin: groups of samples of one prompt, each with a reward, as the
// data of a pass, with the formulas of TRL 1.16's GRPOTrainer. Plain values; any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/batch.h"

namespace strata::apps {

// One answer that was sampled.
struct Rollout {
  std::vector<int32_t> tokens = {};  // the end token included
  std::vector<float> logprobs = {};  // as the model gives them at temperature 1
  bool is_ended = false;             // by an end token; else by the most tokens
  std::optional<double> reward = {};
  std::string omitted = {};  // why there is no reward
};

struct RolloutGroup {
  int64_t prompt_number = 0;  // in the data
  std::vector<int32_t> prompt = {};
  std::vector<Rollout> rollouts = {};
};

// How far each reward of a group is above the mean, in standard deviations (of n - 1, plus 1e-4).
// 0 where there is no reward, and everywhere in a group whose rewards are equal.
struct GroupAdvantages {
  std::vector<float> values = {};
  bool are_equal = false;
};
GroupAdvantages group_advantages(const RolloutGroup& group);

struct GrpoLoss {
  std::string type = "dapo";         // or grpo, dr_grpo, cispo
  std::string importance = "token";  // or sequence
};

// What the loss does with the ratio of a token's probability to the sampled one:
// - dapo, grpo, dr_grpo: -min(r A, clip(r, 0.8, 1.2) A); with sequence importance r is one ratio
//   for an answer, exp of the mean of its log-ratios
// - cispo: -stopgrad(min(r, 5)) A lp
api::Loss loss_of_rollouts(const GrpoLoss& choice);

// The rollouts of a step that have an advantage, in order, as data whose losses add up to that of
// the step: their tokens are weighted by 1 over
// - dapo, cispo: the tokens of all answers
// - grpo: the answer's tokens times the number of answers
// - dr_grpo: `max_tokens` times the number of answers
// of which those without a reward are some. Where none has an advantage the first rollout stands
// for all: its gradient is zero, as that of the step.
std::vector<api::Datum> make_rollout_data(std::span<const RolloutGroup> groups,
                                          const GrpoLoss& choice, int64_t max_tokens);

}  // namespace strata::apps
