// SPDX-License-Identifier: Apache-2.0
// Rollouts: answers to prompts as a run on rewards samples them, with their rewards, which the
// workers find while other answers are still sampled. Answers depend on the weights, the seed, the
// step and their places in it alone. Engine thread of its rank only; the first rank rates.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "engine/runner.h"
#include "reward/reward.h"
#include "setup/text_stack.h"
#include "trainer/grpo.h"
#include "trainer/rollout_record.h"
#include "trainer/settings.h"

namespace strata::apps {

struct RolloutSeconds {
  double sampling = 0;
  double rewards = 0;  // of waiting for them, once all is sampled
};

// Throws Error for what is no reward, and for the first prompt whose record lacks what it reads.
void check_reward(const reward::RewardOptions& options, const TextStack& text,
                  const data::Dataset& prompts);

class Rollouts {
 public:
  // Rows that are sampled at once, and the tokens of a pass that samples, at most.
  struct Limits {
    int64_t rows = 1;
    int64_t pass_tokens = 0;
  };

  Rollouts(const TrainSettings& settings, const ModelTexts& texts, const Limits& limits,
           bool is_first_rank, int64_t steps_done);

  // A group for each of these prompts, by their numbers in the dataset. What the record has of the
  // step is what their rewards are; and what it lacks of it, it has when this returns. Collective.
  std::vector<RolloutGroup> sample_step(engine::Runner& runner, api::AdapterSlot slot,
                                        const data::Dataset& dataset,
                                        const std::vector<int64_t>& prompts, int64_t step);
  // The mean reward of one answer to each prompt; NaN where none has a reward. Collective.
  double sample_mean_reward(engine::Runner& runner, api::AdapterSlot slot,
                            const data::Dataset& dataset);
  // What the last answers took, those of a step or of an evaluation.
  [[nodiscard]] const RolloutSeconds& seconds() const { return seconds_; }

 private:
  static constexpr int64_t kEvaluation = -1;  // in place of a step

  std::vector<RolloutGroup> sample_groups(engine::Runner& runner, api::AdapterSlot slot,
                                          const data::Dataset& dataset,
                                          const std::vector<int64_t>& prompts, int64_t group_size,
                                          int64_t step);
  // A row has ended: it is rated, or the record says how.
  void take_answer(api::SampleResult result, size_t index, int64_t step, const std::string& record,
                   RolloutGroup& group);
  void wait_for_rewards(engine::Runner& runner, std::vector<RolloutGroup>& groups,
                        int64_t group_size);
  // Where nobody rates answers, that is kept until all ranks can end together.
  void run_reward(double seconds);
  void warn_of_omitted(const Rollout& rollout);
  [[nodiscard]] api::SampleRequest request_of(const std::vector<int32_t>& prompt,
                                              api::AdapterSlot slot) const;

  RolloutOptions options_;
  uint64_t seed_;
  Limits limits_;
  TextStack text_;
  std::vector<int32_t> stop_;
  std::optional<reward::Reward> reward_;  // of the first rank, as the record is
  std::optional<RolloutRecord> record_;
  std::string failed_;  // what RewardFailed says
  RolloutSeconds seconds_;
  int64_t num_warnings_ = 0;
};

}  // namespace strata::apps
