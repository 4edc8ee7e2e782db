// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/signal_wait.h"

#include <time.h>

#include <cmath>
#include <cstdint>

namespace strata::apps {

int wait_for_signal(const sigset_t& signals, double seconds) {
  const double whole = std::floor(seconds);
  const timespec wait = {.tv_sec = static_cast<time_t>(whole),
                         .tv_nsec = static_cast<int64_t>((seconds - whole) * 1e9)};
  return sigtimedwait(&signals, nullptr, &wait);
}

}  // namespace strata::apps
