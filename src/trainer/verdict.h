// SPDX-License-Identifier: Apache-2.0
// What is wrong with a run, in a sentence with what to change: before its first step, of what was
// asked; at its end, of how its losses went. A run that went wrong ends with exit code 0 all the
// same: it did what was asked.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/metrics_log.h"

namespace strata::apps {

struct TrainSettings;
struct TrainData;

// Losses in nats per token: of evaluations, where there are any, else of training.
struct LossCourse {
  double before = 0, after = 0;
  bool is_evaluated = false;
  std::optional<double> lowest = {};  // of the evaluations
  int64_t lowest_step = 0;
  int64_t num_steps = 0;   // that were made
  int64_t vocab_size = 0;  // of the model
  bool of_pairs = false;   // losses are of pairs, which no guess of tokens bounds
};

enum class Verdict : uint8_t {
  kFine,
  kDiverged,     // no better than guessing any token, and it was better before
  kRose,         // worse than before the first step
  kOverfits,     // better than before, but clearly worse than it has been
  kStandsStill,  // nothing was learned
};

Verdict judge(const LossCourse& course);
// A sentence with what to change; empty where the run is fine.
std::string verdict_text(const LossCourse& course, double lr);

// The same of a run on rewards, whose loss is about zero whatever is learned: steps in which every
// group's answers had equal rewards taught nothing.
std::string reward_verdict_text(const std::vector<report::MetricsRecord>& records);

// The mean losses of the first and of the last tenth of a run's steps, by its log; not evaluated.
LossCourse read_training_course(const std::vector<report::MetricsRecord>& records);

// What to think about before the first step: too few steps, a rate that ruins any model, --steps 0,
// evaluation examples that are trained on too.
std::vector<std::string> doubts_about(const TrainSettings& settings, const TrainData& data);

}  // namespace strata::apps
