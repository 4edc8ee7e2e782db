// SPDX-License-Identifier: Apache-2.0
// The wall clock, as far as it is believed.
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
// As it is, whether it is believed or not.
double clock_seconds();

}  // namespace strata::server
