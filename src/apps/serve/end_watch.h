// SPDX-License-Identifier: Apache-2.0
// EndWatch: while one lives, a server is ending, and must be done soon. A job on a thread of its
// own may wait for a disk that hangs, and nothing can end such a wait: after `seconds`, or a moment
// behind another SIGINT or SIGTERM, the process ends all the same, with `code` and a warning in the
// log. What was acknowledged is safe by then; files that were not whole go with the next start.
#pragma once
#include <csignal>
#include <thread>

namespace strata::apps {

class EndWatch {
 public:
  // `signals`, with SIGUSR1 in it, is blocked in all threads.
  EndWatch(const sigset_t& signals, double seconds, int code);
  ~EndWatch();  // it was done in time
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

 private:
  std::thread thread_;
};

}  // namespace strata::apps
