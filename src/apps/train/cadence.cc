// SPDX-License-Identifier: Apache-2.0
#include "apps/train/cadence.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace strata::apps {
namespace {

constexpr int64_t kNumEvaluations = 10;
constexpr double kMostSeconds = 1e9;

}  // namespace

SaveEvery parse_save_every(const std::string& text) {
  const auto fail = [&] {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--save-every: got '{}', want a number of steps, or a time as 30s, 10m "
                            "or 2h; 0: at the end only",
                            text));
  };
  SaveEvery every;
  const char* end = text.data() + text.size();
  if (const auto [rest, fault] = std::from_chars(text.data(), end, every.steps);
      fault == std::errc() && rest == end && every.steps >= 0) {
    return every;
  }
  every.steps = 0;
  const auto [rest, fault] =
      std::from_chars(text.data(), end, every.seconds, std::chars_format::fixed);
  if (fault != std::errc() || rest + 1 != end) fail();
  switch (*rest) {
    case 's':
      break;
    case 'm':
      every.seconds *= 60;
      break;
    case 'h':
      every.seconds *= 3600;
      break;
    default:
      fail();
  }
  if (!(every.seconds > 0 && every.seconds <= kMostSeconds)) fail();
  return every;
}

bool is_evaluation_step(int64_t step, int64_t num_steps, const std::optional<int64_t>& every) {
  if (step == num_steps) return true;
  if (every) return step % *every == 0;
  return step * kNumEvaluations / num_steps > (step - 1) * kNumEvaluations / num_steps;
}

bool Evaluations::update_lowest(int64_t step, double loss) {
  if (lowest && !(loss < *lowest)) {
    ++since_lowest;
    return false;
  }
  lowest = loss;
  lowest_step = step;
  since_lowest = 0;
  return true;
}

}  // namespace strata::apps
