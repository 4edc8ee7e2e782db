// SPDX-License-Identifier: Apache-2.0
// TrustedTime: a wall clock that jumps ahead is not believed at once, since what it makes old is
// removed for good. Seconds throughout; one thread.
#pragma once

namespace strata::server {

class TrustedTime {
 public:
  // The wall clock's time, or, while it has been ahead of what the steady clock says by more than
  // kMostDrift for less than `grace`, what it would be without that jump. One that is put back is
  // believed: it makes nothing old. So is the first.
  double update_and_get_time(double wall, double steady, double grace) {
    const double offset = wall - steady;
    if (!is_set_ || offset <= offset_ + kMostDrift) return accept_wall_time(wall, offset);
    if (!is_ahead_) ahead_since_ = steady;
    is_ahead_ = true;
    return steady - ahead_since_ < grace ? steady + offset_ : accept_wall_time(wall, offset);
  }

  static constexpr double kMostDrift = 60;

 private:
  double accept_wall_time(double wall, double offset) {
    is_set_ = true;
    is_ahead_ = false;
    offset_ = offset;
    return wall;
  }

  bool is_set_ = false;
  bool is_ahead_ = false;
  double offset_ = 0;       // of the wall clock to the steady one
  double ahead_since_ = 0;  // steady
};

}  // namespace strata::server
