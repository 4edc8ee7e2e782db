// SPDX-License-Identifier: Apache-2.0
#include "server/store/wall_clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>

#include "base/error.h"

namespace strata::server {
namespace {

constexpr double kClockSet = 1'577'836'800;  // 2020

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double believed_seconds(double clock) { return std::max(clock, kClockSet); }

double wall_seconds() {
  const auto steady = [] {
    timespec now = {};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  static const double start = believed_seconds(clock_seconds()) - steady();
  return start + steady();
}

void check_clock(double clock) {
  if (clock >= kClockSet) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the machine's clock says {}; set it first: what is written, keys and "
                          "certificates go by it",
                          rfc3339(clock)));
}

std::string clock_warning(double clock, double newest) {
  constexpr double kMostDrift = 60;
  if (clock + kMostDrift >= newest) return {};
  return fmt::format(
      "the machine's clock says {}, and the newest of what the server has stored is of {}: while "
      "the clock is behind, nothing expires",
      rfc3339(clock), rfc3339(newest));
}

std::string rfc3339(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(seconds * 1000));
  const std::time_t whole = total / 1000 - (total % 1000 < 0 ? 1 : 0);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     total - 1000 * whole);
}

}  // namespace strata::server
