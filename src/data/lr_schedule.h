// SPDX-License-Identifier: Apache-2.0
// Learning rate of a step, as a pure function: a linear warm-up, then constant, linear or cosine
// decay towards 0. No step has rate 0: warm-up step s of w gets s / (w + 1) of the peak, and the
// decay would reach 0 one step after the last.
#pragma once
#include <cstdint>
#include <string_view>

namespace strata::data {

enum class Schedule { kConstant, kLinear, kCosine };

struct LrSchedule {
  Schedule schedule = Schedule::kCosine;
  double peak = 2e-4;
  int64_t warmup_steps = 10;  // at most half of num_steps are used
  int64_t num_steps = 1;
};

// step: 1 ... num_steps.
double learning_rate(const LrSchedule& schedule, int64_t step);

// "constant", "linear", "cosine"; an Error that names them otherwise.
Schedule parse_lr_schedule(std::string_view name);

}  // namespace strata::data
