// SPDX-License-Identifier: Apache-2.0
#include "trainer/rollouts.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "api/sampling_options.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/sampling/sampling_loop.h"
#include "setup/ranks.h"
#include "setup/scoring.h"

namespace strata::apps {
namespace {

constexpr int64_t kMostWarnings = 5;  // of answers without a reward, one by one
constexpr double kWait = 1;           // seconds, after which nothing happens but another wait

// The tokens that end an answer.
std::vector<int32_t> find_ends(const TextStack& text) {
  std::vector<int32_t> ends = text.end_tokens().stop;
  if (!text.has_template()) return ends;
  if (const auto end = text.find_turn_end_token()) ends.push_back(*end);
  return ends;
}

}  // namespace

void check_reward(const reward::RewardOptions& options, const TextStack& text,
                  const data::Dataset& prompts) {
  const reward::Reward reward(options, "", {text.tokenizer(), find_ends(text)});
  for (size_t i = 0; i < prompts.examples.size(); ++i) {
    const std::string fault = reward.find_fault(data::record_of(prompts, i));
    if (fault.empty()) continue;
    const int64_t number = prompts.examples.order()[i];
    const data::DataFile& file = prompts.files[file_index_of(prompts, number)];
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: {}", file.file->shown(),
                            file.lines[static_cast<size_t>(number - file.first)], fault));
  }
}

Rollouts::Rollouts(const TrainSettings& settings, const ModelTexts& texts, const Limits& limits,
                   bool is_first_rank, int64_t steps_done)
    : options_(settings.options.rollouts),
      seed_(settings.options.seed),
      limits_(limits),
      text_(texts, settings.options.chat),
      stop_(find_ends(text_)) {
  if (!is_first_rank) return;
  reward_.emplace(settings.options.reward, settings.out + "/reward.log",
                  reward::AnswerTokens{text_.tokenizer(), stop_});
  record_.emplace(settings.out + "/rollouts.jsonl", steps_done);
}

api::SampleRequest Rollouts::request_of(const std::vector<int32_t>& prompt,
                                        api::AdapterSlot slot) const {
  return {.prompt = prompt,
          .slot = slot,
          .max_tokens = options_.max_tokens,
          .temperature = static_cast<float>(options_.temperature),
          .stop = stop_};
}

std::vector<RolloutGroup> Rollouts::sample_step(engine::Runner& runner, api::AdapterSlot slot,
                                                const data::Dataset& dataset,
                                                const std::vector<int64_t>& prompts, int64_t step) {
  std::vector<RolloutGroup> groups =
      sample_groups(runner, slot, dataset, prompts, options_.group_size, step);
  if (record_) record_->append(step, groups);
  return groups;
}

double Rollouts::sample_mean_reward(engine::Runner& runner, api::AdapterSlot slot,
                                    const data::Dataset& dataset) {
  std::vector<int64_t> prompts(dataset.examples.size());
  std::iota(prompts.begin(), prompts.end(), int64_t{0});
  double sum = 0;
  int64_t count = 0;
  for (const RolloutGroup& group :
       sample_groups(runner, slot, dataset, prompts, /*group_size=*/1, kEvaluation)) {
    const std::optional<double>& reward = group.rollouts.front().reward;
    sum += reward.value_or(0);
    count += reward ? 1 : 0;
  }
  return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<RolloutGroup> Rollouts::sample_groups(engine::Runner& runner, api::AdapterSlot slot,
                                                  const data::Dataset& dataset,
                                                  const std::vector<int64_t>& prompts,
                                                  int64_t group_size, int64_t step) {
  const double begin = now_seconds();
  const uint64_t seed = api::sample_seed(seed_, step);
  const auto each = static_cast<size_t>(group_size);
  std::vector<RolloutGroup> groups(prompts.size());
  engine::SamplingLoop loop(runner);
  loop.set_step_tokens(limits_.pass_tokens);
  std::map<size_t, size_t> running;  // rows of the loop, by their numbers in the step
  size_t next = 0, open = 0;
  const auto add_next_row = [&] {
    RolloutGroup& group = groups[next / each];
    if (next % each == 0) {
      group.prompt_number = prompts[next / each];
      group.prompt = dataset.examples[static_cast<size_t>(group.prompt_number)].tokens;
      group.rollouts.resize(each);
      const api::SampleRequest request = request_of(group.prompt, slot);
      runner.engine().check(request, next);
      open = loop.open_group(request, nullptr);
    }
    running[loop.add_row(open, api::sample_seed(seed, static_cast<int64_t>(next)))] = next;
    if (++next % each == 0) loop.close_group(open);
  };
  const auto take = [&](std::map<size_t, size_t>::iterator row) {
    RolloutGroup& group = groups[row->second / each];
    take_answer(loop.take_result(row->first), row->second, step,
                data::record_of(dataset, static_cast<size_t>(group.prompt_number)), group);
    running.erase(row);
  };
  while (next < groups.size() * each || !running.empty()) {
    while (next < groups.size() * each && std::ssize(running) < limits_.rows) add_next_row();
    const std::span<const engine::SampledToken> sampled = loop.step();
    for (const engine::SampledToken& token : sampled) {
      if (token.last) take(running.find(token.id));
    }
    // A row whose logits are not finite has ended without a token; its result is a fault.
    if (loop.done() && !running.empty()) take(running.begin());
    run_reward(0);
  }
  const double end = now_seconds();
  wait_for_rewards(runner, groups, group_size);
  seconds_ = {.sampling = end - begin, .rewards = now_seconds() - end};
  return groups;
}

void Rollouts::take_answer(api::SampleResult result, size_t index, int64_t step,
                           const std::string& record, RolloutGroup& group) {
  Rollout& rollout = group.rollouts[index % group.rollouts.size()];
  rollout.tokens = std::move(result.tokens);
  rollout.logprobs = std::move(result.logprobs);
  rollout.is_ended = result.stopped;
  if (!reward_) return;
  if (const RecordedReward* known = record_->find(step, index, group.prompt_number, rollout)) {
    rollout.reward = known->reward;
    rollout.omitted = known->omitted;
    return;
  }
  reward_->submit(index, record, text_.tokenizer().decode(rollout.tokens, /*skip_special=*/true));
}

void Rollouts::wait_for_rewards(engine::Runner& runner, std::vector<RolloutGroup>& groups,
                                int64_t group_size) {
  const auto each = static_cast<size_t>(group_size);
  if (reward_) {
    while (failed_.empty() && !reward_->is_idle()) run_reward(kWait);
    for (const reward::Rated& rated : reward_->take_rated()) {
      Rollout& rollout = groups[rated.id / each].rollouts[rated.id % each];
      rollout.reward = rated.value;
      rollout.omitted = rated.fault;
      if (!rated.value) warn_of_omitted(rollout);
    }
  }
  if (runner.comm().size() > 1) broadcast(runner.comm(), failed_);
  if (!failed_.empty()) throw reward::RewardFailed(failed_);
  if (runner.comm().size() == 1) return;
  std::vector<double> rewards;  // NaN: none
  for (const RolloutGroup& group : groups) {
    for (const Rollout& rollout : group.rollouts)
      rewards.push_back(rollout.reward.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  broadcast(runner.comm(), rewards);
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!std::isnan(rewards[i])) groups[i / each].rollouts[i % each].reward = rewards[i];
  }
}

void Rollouts::run_reward(double seconds) {
  if (!reward_ || !failed_.empty()) return;
  try {
    reward_->run(seconds);
  } catch (const reward::RewardFailed& failed) {
    failed_ = failed.what();
  }
}

void Rollouts::warn_of_omitted(const Rollout& rollout) {
  if (++num_warnings_ > kMostWarnings) return;
  log(LogLevel::kWarning, fmt::format("--reward: an answer is left out: {}{}", rollout.omitted,
                                      num_warnings_ == kMostWarnings
                                          ? "; further ones are counted as omitted in metrics.jsonl"
                                          : ""));
}

}  // namespace strata::apps
