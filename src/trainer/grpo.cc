// SPDX-License-Identifier: Apache-2.0
#include "trainer/grpo.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace strata::apps {
namespace {

constexpr float kEpsilon = 0.2f;    // of the ratio, in either direction
constexpr float kMostCispo = 5.0f;  // of cispo's ratio, which has no least
constexpr double kLeastDeviation = 1e-4;

struct StepCounts {
  int64_t answers = 0, tokens = 0;
};

StepCounts count_answers(std::span<const RolloutGroup> groups) {
  StepCounts counts;
  for (const RolloutGroup& group : groups) {
    counts.answers += std::ssize(group.rollouts);
    for (const Rollout& rollout : group.rollouts) counts.tokens += std::ssize(rollout.tokens);
  }
  return counts;
}

float token_weight(const GrpoLoss& choice, const StepCounts& counts, int64_t length,
                   int64_t max_tokens) {
  if (choice.type == "grpo") return 1.0f / static_cast<float>(counts.answers * length);
  if (choice.type == "dr_grpo") return 1.0f / static_cast<float>(counts.answers * max_tokens);
  return 1.0f / static_cast<float>(counts.tokens);
}

// The answer's targets have these inputs, the prompt's zeros.
api::Datum make_datum(const std::vector<int32_t>& prompt, const Rollout& rollout, float weight,
                      float advantage) {
  using enum api::LossInput;
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), rollout.tokens.begin(), rollout.tokens.end());
  api::Datum datum = {.tokens = {all.begin(), all.end() - 1},
                      .targets = {all.begin() + 1, all.end()}};
  const size_t before = prompt.size() - 1, length = rollout.tokens.size();
  const auto fill = [&](api::LossInput input, float value) {
    datum.inputs[input].assign(before, 0.0f);
    datum.inputs[input].resize(before + length, value);
  };
  fill(kWeights, weight);
  fill(kAdvantages, advantage);
  fill(kSequenceRatioMask, 1.0f);
  fill(kLogprobs, 0.0f);
  std::copy(rollout.logprobs.begin(), rollout.logprobs.end(),
            datum.inputs[kLogprobs].begin() + static_cast<std::ptrdiff_t>(before));
  return datum;
}

}  // namespace

GroupAdvantages group_advantages(const RolloutGroup& group) {
  GroupAdvantages out = {.values = std::vector<float>(group.rollouts.size())};
  std::vector<double> rewards;
  for (const Rollout& rollout : group.rollouts) {
    if (rollout.reward) rewards.push_back(*rollout.reward);
  }
  const auto [least, most] = std::minmax_element(rewards.begin(), rewards.end());
  out.are_equal = rewards.empty() || *least == *most;
  if (out.are_equal) return out;
  double sum = 0.0, squares = 0.0;
  for (const double reward : rewards) sum += reward;
  const double mean = sum / static_cast<double>(rewards.size());
  for (const double reward : rewards) squares += (reward - mean) * (reward - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(rewards.size() - 1));
  for (size_t i = 0; i < group.rollouts.size(); ++i) {
    const std::optional<double>& reward = group.rollouts[i].reward;
    if (reward)
      out.values[i] = static_cast<float>((*reward - mean) / (deviation + kLeastDeviation));
  }
  return out;
}

api::Loss loss_of_rollouts(const GrpoLoss& choice) {
  if (choice.type == "cispo") return {api::LossName::kCispo, {0.0f, kMostCispo}};
  return {choice.importance == "sequence" ? api::LossName::kGspo : api::LossName::kPpo,
          {1.0f - kEpsilon, 1.0f + kEpsilon}};
}

std::vector<api::Datum> make_rollout_data(std::span<const RolloutGroup> groups,
                                          const GrpoLoss& choice, int64_t max_tokens) {
  const StepCounts counts = count_answers(groups);
  CHECK(counts.answers > 0);
  std::vector<api::Datum> data;
  const auto add = [&](const RolloutGroup& group, const Rollout& rollout, float advantage) {
    const float weight = token_weight(choice, counts, std::ssize(rollout.tokens), max_tokens);
    data.push_back(make_datum(group.prompt, rollout, weight, advantage));
  };
  for (const RolloutGroup& group : groups) {
    const GroupAdvantages advantages = group_advantages(group);
    for (size_t i = 0; i < group.rollouts.size(); ++i) {
      if (advantages.values[i] != 0.0f) add(group, group.rollouts[i], advantages.values[i]);
    }
  }
  if (data.empty()) add(groups.front(), groups.front().rollouts.front(), 0.0f);
  return data;
}

}  // namespace strata::apps
