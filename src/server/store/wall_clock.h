// SPDX-License-Identifier: Apache-2.0
// What the server's times and lifetimes go by: the wall clock at the start of the process, and from
// there a clock that nobody sets and that counts while the machine sleeps. A wall clock that jumps
// later moves nothing.
#pragma once
#include <string>

namespace strata::server {

// Seconds since 1970, UTC; and as RFC 3339 with milliseconds, ending in Z. A clock of before 2020
// was never set, so it is believed to be later: readers of what is written then know such times.
double wall_seconds();
double believed_seconds(double clock);
std::string rfc3339(double seconds);
// Error{kInvalidArgument} for a clock that was never set.
void check_clock(double clock);
// What is wrong with a clock that is before what a store has written already; or nothing.
std::string clock_warning(double clock, double newest);
// The machine's clock as it is now.
double clock_seconds();

}  // namespace strata::server
