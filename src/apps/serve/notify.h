// SPDX-License-Identifier: Apache-2.0
// What systemd is told (sd_notify(3)): a datagram to the socket that $NOTIFY_SOCKET names. Without
// that variable nothing is told.
//   notify_manager("READY=1");
#pragma once
#include <optional>
#include <string>

namespace strata::apps {

// Never waits, and a manager that does not listen is no fault.
void notify_manager(const std::string& text);

// How often it wants to hear WATCHDOG=1, in seconds ($WATCHDOG_USEC, when meant for this process);
// nothing: it wants none.
std::optional<double> watchdog_seconds();

// A reload: what comes first, and the time that it began.
std::string reloading_text();

}  // namespace strata::apps
