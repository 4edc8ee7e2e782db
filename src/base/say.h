// SPDX-License-Identifier: Apache-2.0
// What a command that has something to lose says to people. A reader who has gone, a terminal that
// was closed and a full disk behind a log end nothing, and nothing here throws. Any thread.
#pragma once
#include <string_view>

namespace strata {

// A command that would lose its work calls this first: writing to a pipe that nobody reads fails
// from then on, and does not end the process (SIGPIPE).
void ignore_closed_pipes();

void say(std::string_view text);           // to stderr
void print_result(std::string_view text);  // to stdout, at once

}  // namespace strata
