// SPDX-License-Identifier: Apache-2.0
// Clock: when ticks come, about ten times a second, and how late: by it time limits leave out what
// was a standstill of the process or of the I/O thread, and new work is refused that would put the
// thread further behind. Times are now_seconds(). I/O thread, but for the constructor.
#pragma once
#include <algorithm>

namespace strata::server {

class Clock {
 public:
  // The first tick may end a standstill that began before it.
  explicit Clock(double now) : ticked_(now) {}

  // A tick: the seconds of the standstill that it ends, or 0.
  double tick(double now);

  [[nodiscard]] bool has_ticked() const { return has_ticked_; }
  [[nodiscard]] double age(double now) const { return now - ticked_; }  // of the last tick
  // By how many seconds a tick came late, the most of the last ten to twenty seconds.
  [[nodiscard]] double lag() const { return std::max(lag_, lag_before_); }
  // How late ticks come, the last ones counting most: one standstill alone is over when it is seen.
  [[nodiscard]] double behind() const { return behind_; }

 private:
  double ticked_ = 0;
  bool has_ticked_ = false;
  double lag_since_ = 0;
  double lag_ = 0, lag_before_ = 0;  // the most of these ten seconds, and of the ten before
  double behind_ = 0;
};

}  // namespace strata::server
