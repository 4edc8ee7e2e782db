// SPDX-License-Identifier: Apache-2.0
#include "report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace strata::report {
namespace {

// Three significant digits, without an exponent and without a trailing ".0" on whole small numbers.
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

// `value` is in the first of the units, which are a factor of `step` apart.
std::string format_in_units(double value, double step, std::span<const char* const> units) {
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), units[unit]);
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  return format_in_units(static_cast<double>(bytes) / 1024, 1024, kUnits);
}

std::string format_count(double count) {
  if (!std::isfinite(count)) return "?";
  if (std::abs(count) < 999.5) {
    return count == std::floor(count) ? fmt::format("{:.0f}", count) : fmt::format("{:.3g}", count);
  }
  constexpr const char* kUnits[] = {"k", "M", "G", "T"};
  return format_in_units(count / 1000, 1000, kUnits);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const double rounded = std::round(seconds);
  if (rounded < 60) return fmt::format("{:.0f} s", rounded);
  if (rounded > 1e9) return "?";
  const auto whole = static_cast<int64_t>(rounded);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  if (whole < 86400) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string format_seconds(double seconds) {
  if (seconds >= 0 && seconds < 0.9995) return fmt::format("{:.3g} ms", 1e3 * seconds);
  return format_duration(seconds);
}

}  // namespace strata::report
