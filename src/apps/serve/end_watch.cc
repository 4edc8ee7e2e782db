// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/end_watch.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/serve/signal_wait.h"
#include "base/clock.h"
#include "base/log.h"

namespace strata::apps {
namespace {

constexpr double kMoment = 1.0;  // for what is about to end, behind a signal that says "at once"

// Ends the process after `seconds`, sooner at a second signal, unless SIGUSR1 comes before.
void run_exit_watchdog(const sigset_t& signals, double seconds, int code) {
  double end = now_seconds() + seconds;
  while (now_seconds() < end) {
    const int signal = wait_for_signal(signals, std::max(0.0, end - now_seconds()));
    if (signal == SIGUSR1) return;
    if (signal == SIGTERM || signal == SIGINT) end = std::min(end, now_seconds() + kMoment);
  }
  log(LogLevel::kWarning,
      "serve: something does not end, as if a disk or a database hung; what it does is dropped");
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

EndWatch::EndWatch(const sigset_t& signals, double seconds, int code)
    : thread_([=] { run_exit_watchdog(signals, seconds, code); }) {}

EndWatch::~EndWatch() {
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

}  // namespace strata::apps
