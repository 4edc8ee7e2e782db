// SPDX-License-Identifier: Apache-2.0
// Interrupts: while one lives, SIGINT (Ctrl-C) is noted and ends nothing by itself, however often
// it comes. One at a time. Where a second one is to end the process, base/stop.h serves.
#pragma once
#include <csignal>

namespace strata::apps {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // SIGINT does again what it did before
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  [[nodiscard]] static bool noted();
  static void forget();
  // While a read may wait, which a signal a moment before it would not break off: an alarm does so
  // within a second.
  static void break_reads(bool on);

 private:
  struct sigaction before_int_ = {};
  struct sigaction before_alarm_ = {};
};

}  // namespace strata::apps
