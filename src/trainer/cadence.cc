// SPDX-License-Identifier: Apache-2.0
#include "trainer/cadence.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace strata::apps {
namespace {

constexpr int64_t kNumEvaluations = 10;
constexpr double kMostSeconds = 1e9;

std::optional<int64_t> parse_steps(const std::string& text) {
  int64_t steps = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, steps);
  return fault == std::errc() && rest == end && steps >= 0 ? std::optional(steps) : std::nullopt;
}

// Seconds in an 's', 'm' or 'h'; 0 for any other.
double seconds_of_unit(char unit) {
  return unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
}

std::optional<double> parse_seconds(const std::string& text) {
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, seconds, std::chars_format::fixed);
  if (fault != std::errc() || rest + 1 != end) return std::nullopt;
  seconds *= seconds_of_unit(*rest);
  return seconds > 0 && seconds <= kMostSeconds ? std::optional(seconds) : std::nullopt;
}

}  // namespace

SaveEvery parse_save_every(const std::string& text) {
  if (const auto steps = parse_steps(text)) return {.steps = *steps};
  if (const auto seconds = parse_seconds(text)) return {.seconds = *seconds};
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--save-every: got '{}', want a number of steps, or a time as 30s, 10m "
                          "or 2h; 0: at the end only",
                          text));
}

bool is_evaluation_step(int64_t step, int64_t num_steps, const std::optional<int64_t>& every) {
  if (step == num_steps) return true;
  if (every) return step % *every == 0;
  return step * kNumEvaluations / num_steps > (step - 1) * kNumEvaluations / num_steps;
}

bool Evaluations::record_evaluation(int64_t step, double loss) {
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
