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

 private:
  struct sigaction before_ = {};
};

}  // namespace strata::apps
