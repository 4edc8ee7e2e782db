// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <execinfo.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace strata {

void fail_check(const char* file, int line, const char* expression, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s  %s\n", file, line, expression, values.c_str());
  std::array<void*, 32> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  backtrace_symbols_fd(frames.data(), count, 2);
  std::abort();
}

}  // namespace strata
