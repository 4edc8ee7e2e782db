// SPDX-License-Identifier: Apache-2.0
// StopSignals: while one lives, the first SIGINT or SIGTERM is only noted, so that long work can
// end where it is whole; the second one ends the process at once. Exit codes are those of a shell:
// 130 of SIGINT, 143 of SIGTERM. Of work that has something to lose three more are noted: SIGHUP of
// a terminal that has gone, unless it is ignored (nohup), and SIGUSR1 and SIGUSR2, which batch
// systems send ahead of the end. These never end the process: a shell sends SIGHUP twice, and
// Slurm SIGTERM behind them. One at a time; asked() from any thread.
//   const StopSignals signals("ends after this step; again: at once");
//   while (more() && !StopSignals::asked()) step();
//   return StopSignals::exit_code();
#pragma once

#include <array>
#include <csignal>

namespace strata {

class StopSignals {
 public:
  enum class First { kNoted, kEnds };     // what the first signal does
  enum class Work { kNothing, kToLose };  // whether SIGHUP, SIGUSR1 and SIGUSR2 are noted

  // `notice` goes to stderr as a line of its own at the first signal, an empty one does not; it is
  // kept, so a literal.
  explicit StopSignals(const char* notice, First first = First::kNoted, Work work = Work::kNothing);
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
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace strata
