// SPDX-License-Identifier: Apache-2.0
// Interrupts: while one lives, SIGINT (Ctrl-C) is noted and ends nothing by itself, however often
// it comes. Input is waited for with it, so that no signal comes too early to be heard. One at a
// time. Where a second one is to end the process, base/stop.h serves.
#pragma once
#include <csignal>

namespace strata::apps {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // SIGINT does again what it did before
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // From noting one until forget().
  [[nodiscard]] static bool noted();
  static void forget();

  // Blocks until stdin can be read (or has ended), or until there was an interrupt or a wake();
  // whether stdin can be read.
  [[nodiscard]] static bool wait_for_input();
  // Ends a wait_for_input(), the next one where none waits. For handlers of signals.
  static void wake();

 private:
  struct sigaction before_ = {};
};

}  // namespace strata::apps
