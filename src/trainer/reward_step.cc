// SPDX-License-Identifier: Apache-2.0
// TrainJob::prepare_rollouts and its steps on rewards (trainer/job.h).
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/clock.h"
#include "setup/adapter_texts.h"
#include "trainer/grpo.h"
#include "trainer/job.h"
#include "trainer/rollouts.h"

namespace strata::apps {
namespace {

// All but ratios and seconds.
RewardNumbers numbers_of(std::span<const RolloutGroup> groups) {
  RewardNumbers numbers;
  double sum = 0, squares = 0;
  int64_t count = 0, answers = 0, equal = 0, cut = 0;
  for (const RolloutGroup& group : groups) {
    equal += group_advantages(group).are_equal ? 1 : 0;
    answers += std::ssize(group.rollouts);
    for (const Rollout& rollout : group.rollouts) {
      numbers.sampled_tokens += std::ssize(rollout.tokens);
      cut += rollout.is_ended ? 0 : 1;
      if (!rollout.reward) continue;
      sum += *rollout.reward;
      ++count;
    }
  }
  numbers.mean = sum / static_cast<double>(count);
  for (const RolloutGroup& group : groups) {
    for (const Rollout& rollout : group.rollouts) {
      if (rollout.reward)
        squares += (*rollout.reward - numbers.mean) * (*rollout.reward - numbers.mean);
    }
  }
  numbers.deviation = count > 1 ? std::sqrt(squares / static_cast<double>(count - 1)) : 0;
  numbers.omitted = answers - count;
  numbers.share_equal = static_cast<double>(equal) / static_cast<double>(groups.size());
  numbers.share_cut = static_cast<double>(cut) / static_cast<double>(answers);
  numbers.mean_length = static_cast<double>(numbers.sampled_tokens) / static_cast<double>(answers);
  return numbers;
}

// The trainer's probability of the answers' tokens over the sampled one.
void add_ratios(const std::vector<api::Datum>& data,
                const std::vector<api::SequenceResult>& results, RewardNumbers& numbers) {
  for (size_t s = 0; s < data.size(); ++s) {
    const std::vector<float>& weights = data[s].inputs[api::LossInput::kWeights];
    for (size_t t = 0; t < weights.size(); ++t) {
      if (weights[t] == 0.0f) continue;
      const double ratio =
          std::exp(static_cast<double>(results[s].logprobs[t]) -
                   static_cast<double>(data[s].inputs[api::LossInput::kLogprobs][t]));
      numbers.least_ratio = std::min(numbers.least_ratio, ratio);
      numbers.most_ratio = std::max(numbers.most_ratio, ratio);
    }
  }
}

}  // namespace

void TrainJob::prepare_rollouts(const Rollouts::Limits& limits) {
  rollouts_ = std::make_unique<Rollouts>(
      settings_, texts_with_adapter(spec_.texts, options().adapter, options().chat), limits,
      is_first_rank(), steps_done_);
}

TrainStep TrainJob::step_on_rewards() {
  const data::StepPlan plan = plan_.plan_step(steps_done_);
  TrainStep done{.step = steps_done_ + 1, .epoch = plan.epoch};
  done.lr = data::learning_rate(schedule_, done.step);
  std::vector<int64_t> prompts;
  for (const Pass& pass : plan.passes) prompts.insert(prompts.end(), pass.begin(), pass.end());
  const std::vector<RolloutGroup> groups =
      rollouts_->sample_step(*pipeline_, slot_, data_.train, prompts, done.step);
  RewardNumbers numbers = numbers_of(groups);
  const double begin = now_seconds();
  const std::vector<api::Datum> data =
      make_rollout_data(groups, options().grpo, options().rollouts.max_tokens);
  api::Batch batch = {.gradients =
                          is_lora() ? api::Gradients::kAdapters : api::Gradients::kParameters};
  for (const api::Datum& datum : data) {
    batch.sequences.push_back(
        {.datum = &datum, .slot = slot_, .loss = loss_of_rollouts(options().grpo)});
    done.tokens += std::ssize(datum.tokens);
  }
  const int64_t updates = options().rollouts.updates;
  for (int64_t update = 0; update < updates; ++update) {
    const api::BatchResult result = pipeline_->run(batch);
    if (update == 0) add_ratios(data, result.sequences, numbers);
    done.loss += result.loss_sum / static_cast<double>(updates);
    done.grad_norm = run_optimizer_step(done.lr, steps_done_ * updates + update + 1);
  }
  done.examples = std::ssize(groups);
  done.trained_tokens = numbers.sampled_tokens;
  numbers.sampling_seconds = rollouts_->seconds().sampling;
  numbers.reward_seconds = rollouts_->seconds().rewards;
  numbers.training_seconds = now_seconds() - begin;
  done.rewards = numbers;
  steps_done_ = done.step;
  return done;
}

double TrainJob::evaluate_on_rewards() {
  return -rollouts_->sample_mean_reward(*pipeline_, slot_, data_.eval);
}

}  // namespace strata::apps
