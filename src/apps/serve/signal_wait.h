// SPDX-License-Identifier: Apache-2.0
// A wait for signals that are blocked in all threads.
#pragma once
#include <csignal>

namespace strata::apps {

// The first of the signals, or -1 after `seconds`.
int wait_for_signal(const sigset_t& signals, double seconds);

}  // namespace strata::apps
