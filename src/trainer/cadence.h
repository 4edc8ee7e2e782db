// SPDX-License-Identifier: Apache-2.0
// Cadence: when a run saves and evaluates, and what its evaluations have come to: which was the
// lowest, and how many have come since. Plain values; every rank has the same but for the clock.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace strata::apps {

// "100" steps, "10m", "2h", "30s"; "0": at the end only. Error{kInvalidArgument} that names
// --save-every.
struct SaveEvery {
  int64_t steps = 0;
  double seconds = 0;
};
SaveEvery parse_save_every(const std::string& text);

// Whether a run of so many steps is evaluated after this one: `every` so many, or, where that is
// absent, ten times; and after the last.
bool is_evaluation_step(int64_t step, int64_t num_steps, const std::optional<int64_t>& every);

// What the evaluations since the first step have given. Part of the saved state.
struct Evaluations {
  std::optional<double> lowest;
  int64_t lowest_step = 0;
  int64_t since_lowest = 0;  // evaluations without a new lowest loss
  int64_t kept_step = 0;     // whose model is in best/; 0: none

  // Counts the evaluation; true where it is a new lowest loss.
  bool record_evaluation(int64_t step, double loss);
};

}  // namespace strata::apps
