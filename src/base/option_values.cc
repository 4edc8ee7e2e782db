// SPDX-License-Identifier: Apache-2.0
#include "base/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace strata {

void refuse_value(const std::string& name, const std::string& text, const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: got '{}', want {}", name, text, wanted));
}

namespace {

struct NumberAndUnit {
  double value;
  std::string_view unit;
};

// A number, 0 or more, and the unit behind it; spaces between them are fine.
std::optional<NumberAndUnit> find_number_and_unit(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) return std::nullopt;
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  return NumberAndUnit{value, unit};
}

NumberAndUnit parse_number_and_unit(const std::string& name, const std::string& text,
                                    const char* wanted) {
  const std::optional<NumberAndUnit> found = find_number_and_unit(text);
  if (!found) refuse_value(name, text, wanted);
  return *found;
}

template <size_t N>
double unit_factor(const std::array<std::pair<std::string_view, double>, N>& units,
                   std::string_view unit) {
  for (const auto& [name, factor] : units) {
    if (name == unit) return factor;
  }
  return 0;
}

constexpr double kKi = 1024;
constexpr std::array<std::pair<std::string_view, double>, 14> kSizes = {{
    {"", 1},
    {"B", 1},
    {"KiB", kKi},
    {"MiB", kKi* kKi},
    {"GiB", kKi* kKi* kKi},
    {"TiB", kKi* kKi* kKi* kKi},
    {"K", kKi},
    {"M", kKi* kKi},
    {"G", kKi* kKi* kKi},
    {"T", kKi* kKi* kKi* kKi},
    {"kB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
}};
constexpr double kMostBytes = 0x1p50;  // sums of sizes stay numbers
constexpr std::array<std::pair<std::string_view, double>, 6> kDurations = {
    {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}};

}  // namespace

std::optional<int64_t> find_size(const std::string& text) {
  const std::optional<NumberAndUnit> found = find_number_and_unit(text);
  const double bytes = found ? found->value * unit_factor(kSizes, found->unit) : 0;
  if (bytes < 1 || bytes > kMostBytes) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

int64_t parse_size(const std::string& name, const std::string& text, int64_t whole) {
  const char* wanted =
      whole > 0 ? "a size like 8GiB or a share of RAM like 80%" : "a size like 64MiB";
  const auto [value, unit] = parse_number_and_unit(name, text, wanted);
  if (whole > 0 && unit == "%") {
    if (value <= 0 || value > 100) refuse_value(name, text, "a share above 0% and at most 100%");
    return static_cast<int64_t>(static_cast<double>(whole) * value / 100);
  }
  const double bytes = value * unit_factor(kSizes, unit);
  if (bytes > kMostBytes) refuse_value(name, text, "a size of at most 1 PiB");
  if (bytes < 1) refuse_value(name, text, wanted);
  return static_cast<int64_t>(bytes);
}

int64_t parse_memory_size(const std::string& name, const std::string& text, int64_t whole) {
  constexpr int64_t kLeast = 1 << 20;
  const int64_t bytes = parse_size(name, text, whole);
  if (bytes >= kLeast) return bytes;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: got '{}', which is {} bytes; want at least 1MiB, with its unit: "
                          "12GiB",
                          name, text, bytes));
}

double parse_duration(const std::string& name, const std::string& text) {
  const char* wanted = "a duration like 30s, 500ms, 5m or 2h";
  const auto [value, unit] = parse_number_and_unit(name, text, wanted);
  const double seconds = value * unit_factor(kDurations, unit);
  if (seconds <= 0 || seconds > 1e9) refuse_value(name, text, wanted);
  return seconds;
}

}  // namespace strata
