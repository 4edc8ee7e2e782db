// SPDX-License-Identifier: Apache-2.0
#include "server/service/clock.h"

#include <utility>

namespace strata::server {
namespace {

constexpr double kTickSeconds = 0.1;   // what is wanted between ticks
constexpr double kLagSeconds = 10.0;   // a window of the lag's highest
constexpr double kStallSeconds = 2.0;  // a tick that is later than this tells of a standstill
constexpr double kMostBehind = 1.9;    // that one tick counts for: alone it comes to half of it

}  // namespace

double Clock::tick(double now) {
  const double gap = now - std::exchange(ticked_, now);
  has_ticked_ = true;
  if (now - lag_since_ > kLagSeconds) {
    lag_before_ = lag_;
    lag_ = 0;
    lag_since_ = now;
  }
  lag_ = std::max(lag_, gap - kTickSeconds);
  behind_ = (behind_ + std::clamp(gap - kTickSeconds, 0.0, kMostBehind)) / 2;
  return gap > kStallSeconds ? gap : 0.0;
}

}  // namespace strata::server
