// SPDX-License-Identifier: Apache-2.0
// Time that only moves forward, in seconds, for durations.
#pragma once
#include <chrono>

namespace strata {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace strata
