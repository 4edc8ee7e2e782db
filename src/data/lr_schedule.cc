// SPDX-License-Identifier: Apache-2.0
#include "data/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace strata::data {

double learning_rate(const LrSchedule& schedule, int64_t step) {
  CHECK(step >= 1 && step <= schedule.num_steps, step, schedule.num_steps);
  const int64_t warmup = std::clamp<int64_t>(schedule.warmup_steps, 0, schedule.num_steps / 2);
  if (step <= warmup)
    return schedule.peak * static_cast<double>(step) / static_cast<double>(warmup + 1);
  const double done =
      static_cast<double>(step - 1 - warmup) / static_cast<double>(schedule.num_steps - warmup);
  switch (schedule.schedule) {
    case Schedule::kConstant:
      return schedule.peak;
    case Schedule::kLinear:
      return schedule.peak * (1 - done);
    case Schedule::kCosine:
      return schedule.peak * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  return schedule.peak;
}

Schedule parse_lr_schedule(std::string_view name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "linear") return Schedule::kLinear;
  if (name == "cosine") return Schedule::kCosine;
  throw Error(ErrorCode::kInvalidArgument,
              "--lr-schedule: got '" + std::string(name) + "', want constant, linear or cosine");
}

}  // namespace strata::data
