// SPDX-License-Identifier: Apache-2.0
#include "trainer/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "base/hash.h"
#include "data/batch_defaults.h"
#include "trainer/job.h"
#include "trainer/settings.h"

namespace strata::apps {
namespace {

// Shares of a loss.
constexpr double kRise = 0.01;         // more is no noise of an evaluation
constexpr double kRiseAgain = 0.1;     // behind the lowest evaluation
constexpr double kStill = 0.001;       // less is no change
constexpr double kOfGuessing = 0.98;   // of the loss of guessing: a model at random is about there
constexpr int64_t kLong = 5;           // steps without a lesson, of a run on rewards
constexpr double kRuinousRate = 0.05;  // AdamW moves each value by about this in a step

void mix_tokens(const data::Example& example, Hash& hash) {
  hash.mix_bytes(example.tokens.data(), example.tokens.size() * sizeof(example.tokens[0]));
  hash.mix_bytes(example.targets.data(), example.targets.size() * sizeof(example.targets[0]));
}

// An example's, or those of both answers of a pair.
uint64_t hash_tokens(const data::Examples& examples, size_t i) {
  Hash hash;
  if (examples.has_pairs()) {
    const data::ExamplePair pair = examples.pair(i);
    mix_tokens(pair.chosen, hash);
    mix_tokens(pair.rejected, hash);
  } else {
    mix_tokens(examples[i], hash);
  }
  return hash.value();
}

// How many examples of the evaluation are trained on too.
int64_t count_trained_on(const TrainData& data) {
  std::unordered_set<uint64_t> trained;
  for (size_t i = 0; i < data.train.examples.size(); ++i)
    trained.insert(hash_tokens(data.train.examples, i));
  int64_t count = 0;
  for (size_t i = 0; i < data.eval.examples.size(); ++i)
    count += trained.contains(hash_tokens(data.eval.examples, i)) ? 1 : 0;
  return count;
}

std::string few_steps_doubt(const TrainSettings& settings, int64_t num_steps) {
  if (num_steps >= data::kFewSteps) return {};
  std::string text =
      fmt::format("{} step{} only, which teaches little: ", num_steps, num_steps == 1 ? "" : "s");
  if (settings.steps > 0) return text + "give more --steps";
  text += fmt::format("give more --epochs (now {})", settings.epochs);
  if (settings.batch_size != 1) text += ", a smaller --batch-size, or more examples";
  return text;
}

std::string rate_doubt(const TrainSettings& settings) {
  if (settings.lr <= kRuinousRate) return {};
  return fmt::format(
      "--lr {:g}: a step moves each value by about this much, and most weights are hundredths; "
      "want less than {:g}, and mostly {:g} or so",
      settings.lr, kRuinousRate, settings.options.method == "lora" ? 5e-4 : 1e-5);
}

std::string no_steps_doubt(const TrainSettings& settings, int64_t num_steps) {
  if (settings.options.steps != 0) return {};
  return fmt::format(
      "--steps 0 means those of --epochs {}, which are {}; --dry-run says what a run would do, "
      "and trains nothing",
      settings.epochs, num_steps);
}

std::string evaluation_doubt(const TrainSettings& settings, const TrainData& data) {
  if (settings.options.eval.empty()) return {};
  const int64_t count = count_trained_on(data);
  if (count == 0) return {};
  return fmt::format(
      "--eval: {} of its {} examples are trained on too: the evaluation says how well they are "
      "known by heart, and nothing of other texts; give other files, or leave it out",
      count, data.eval.examples.size());
}

double mean_of(const std::vector<double>& losses, size_t first, size_t count) {
  double sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += losses[i];
  return sum / static_cast<double>(count);
}

}  // namespace

Verdict judge(const LossCourse& course) {
  if (course.num_steps == 0 || (!course.is_evaluated && course.num_steps < data::kFewSteps))
    return Verdict::kFine;
  const double guessing = course.of_pairs ? std::numeric_limits<double>::infinity()
                                          : std::log(static_cast<double>(course.vocab_size));
  if (!(course.after <= course.before * (1 + kRise)))
    return course.after >= kOfGuessing * guessing ? Verdict::kDiverged : Verdict::kRose;
  if (course.lowest && course.after > *course.lowest * (1 + kRiseAgain)) return Verdict::kOverfits;
  const bool is_still = std::abs(course.after - course.before) < kStill * course.before;
  return is_still && course.num_steps >= data::kFewSteps ? Verdict::kStandsStill : Verdict::kFine;
}

std::string verdict_text(const LossCourse& course, double lr) {
  const char* loss = course.is_evaluated ? "evaluation loss" : "training loss";
  const std::string change = fmt::format("from {:.4f} to {:.4f}", course.before, course.after);
  switch (judge(course)) {
    case Verdict::kFine:
      return {};
    case Verdict::kDiverged:
      return fmt::format(
          "the run diverged: the {} rose {}, no better than guessing any of {} tokens; lower --lr "
          "(now {:g})",
          loss, change, course.vocab_size, lr);
    case Verdict::kRose:
      return fmt::format("the {} rose {}: the model is worse than before; lower --lr (now {:g})",
                         loss, change, lr);
    case Verdict::kOverfits:
      return fmt::format(
          "the {} was {:.4f} at step {} and rose to {:.4f}: the model learns the examples by "
          "heart; give fewer --epochs, or take what --keep-best has in best/",
          loss, *course.lowest, course.lowest_step, course.after);
    case Verdict::kStandsStill:
      return fmt::format(
          "the {} stands still, {}: nothing was learned; raise --lr (now {:g}), or see by strata "
          "data what is trained",
          loss, change, lr);
  }
  return {};
}

std::string reward_verdict_text(const std::vector<report::MetricsRecord>& records) {
  int64_t steps = 0, equal = 0;
  double reward = 0;
  for (const report::MetricsRecord& record : records) {
    const double share = record.number("frac_reward_zero_std");
    if (!std::isfinite(share)) continue;
    ++steps;
    if (share < 1) continue;
    ++equal;
    reward += record.number("reward");
  }
  if (equal < kLong || 2 * equal < steps) return {};
  return fmt::format(
      "in {} of {} steps all answers to each prompt had the same reward ({:g} in the mean), and "
      "nothing was learned from them; give prompts that are answered well sometimes and not "
      "always, a reward with values in between, a larger --group-size or a higher --temperature",
      equal, steps, reward / static_cast<double>(equal));
}

LossCourse read_training_course(const std::vector<report::MetricsRecord>& records) {
  std::vector<double> losses;
  for (const report::MetricsRecord& record : records) {
    if (std::isfinite(record.number("loss"))) losses.push_back(record.number("loss"));
  }
  if (losses.empty()) return {};
  const size_t tenth = std::max<size_t>(1, losses.size() / 10);
  return {.before = mean_of(losses, 0, tenth),
          .after = mean_of(losses, losses.size() - tenth, tenth),
          .num_steps = std::ssize(losses)};
}

std::vector<std::string> doubts_about(const TrainSettings& settings, const TrainData& data) {
  const int64_t steps = num_steps(settings, data.train);
  std::vector<std::string> doubts = {few_steps_doubt(settings, steps), rate_doubt(settings),
                                     no_steps_doubt(settings, steps),
                                     evaluation_doubt(settings, data)};
  std::erase(doubts, "");
  return doubts;
}

}  // namespace strata::apps
