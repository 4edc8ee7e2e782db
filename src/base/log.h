// SPDX-License-Identifier: Apache-2.0
// One log for the program, to stderr, behind one dial (base/env.h: STRATA_LOG). Any thread.
#pragma once
#include <string_view>

namespace strata {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3, kTrace = 4 };

void set_log_level(int level);  // 0..4; main calls it once with env_log_level()
void log(LogLevel level, std::string_view message);

}  // namespace strata
