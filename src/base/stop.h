// SPDX-License-Identifier: Apache-2.0
// StopSignals: while one lives, the first SIGINT or SIGTERM is only noted, so that long work can
// end where it is whole; the second one ends the process at once. Exit codes are those of a shell:
// 130 of SIGINT, 143 of SIGTERM. SIGHUP, of a terminal that has gone, is one of them where that is
// said, unless it is ignored (nohup). One at a time; asked() from any thread.
//   const StopSignals signals("ends after this step; again: at once");
//   while (more() && !StopSignals::asked()) step();
//   return StopSignals::exit_code();
#pragma once

#include <csignal>

namespace strata {

class StopSignals {
 public:
  enum class First { kNoted, kEnds };   // what the first signal does
  enum class Hangup { kLeft, kNoted };  // whether SIGHUP is a signal to stop

  // `notice` goes to stderr as a line of its own at the first signal, an empty one does not; it is
  // kept, so a literal.
  explicit StopSignals(const char* notice, First first = First::kNoted,
                       Hangup hangup = Hangup::kLeft);
  ~StopSignals();  // signals do again what they did before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] static bool asked();
  // As if the signal had come: for a program that takes its signals itself.
  static void ask(int signal);
  [[nodiscard]] static int exit_code();  // 0 where nothing was asked
  // The next signal is the first one again: what was asked has been done.
  static void forget();

 private:
  struct sigaction before_int_ = {};
  struct sigaction before_term_ = {};
  struct sigaction before_hangup_ = {};
};

}  // namespace strata
