// SPDX-License-Identifier: Apache-2.0
// The small parts of base/: check, env, clock, function_ref, log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>

#include "base/check.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/function_ref.h"
#include "base/log.h"
#include "tests/base/temp_dir.h"

namespace strata {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

enum class Colour { kRed = 4 };

TEST(Check, PassesSilently) {
  ::testing::internal::CaptureStderr();
  CHECK(1 + 1 == 2, "never printed");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(CheckDeathTest, DcheckIsForDebugBuildsAndSanitizers) {
#if defined(NDEBUG) && !defined(STRATA_DCHECK)
  int evaluated = 0;
  DCHECK(++evaluated > 1);
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_DEATH(DCHECK(1 + 1 == 3, 7), "CHECK failed: 1 \\+ 1 == 3  7");
#endif
}

TEST(CheckDeathTest, PrintsExpressionAndValues) {
  const int64_t got = 3;
  EXPECT_DEATH(CHECK(got == 4, got, "wanted four", true, Colour::kRed),
               "base_test.cc:.*CHECK failed: got == 4  3 wanted four true 4");
}

TEST(Env, LogLevelIsOneDigit) {
  ::unsetenv("STRATA_LOG");
  EXPECT_EQ(env_log_level(), 1);
  ::setenv("STRATA_LOG", "", 1);
  EXPECT_EQ(env_log_level(), 1);
  for (const char* value : {"0", "1", "2", "3", "4"}) {
    ::setenv("STRATA_LOG", value, 1);
    EXPECT_EQ(env_log_level(), value[0] - '0');
  }
  for (const char* value : {"5", "-1", "00", "info", " 1"}) {
    ::setenv("STRATA_LOG", value, 1);
    EXPECT_THAT(error_of([] { env_log_level(); }), HasSubstr(value));
  }
  ::unsetenv("STRATA_LOG");
}

TEST(Env, CpuPathIsTheVariable) {
  const std::string before = env_cpu_path();
  ::setenv("STRATA_CPU_PATH", "avx2", 1);
  EXPECT_EQ(env_cpu_path(), "avx2");
  ::unsetenv("STRATA_CPU_PATH");
  EXPECT_EQ(env_cpu_path(), "");
  if (!before.empty()) ::setenv("STRATA_CPU_PATH", before.c_str(), 1);
}

TEST(Clock, MovesForward) {
  const double before = now_seconds();
  EXPECT_GE(now_seconds(), before);
}

int call_with(FunctionRef<int(int)> function, int value) { return function(value); }

TEST(FunctionRef, CallsAndSeesTheState) {
  int calls = 0;
  EXPECT_EQ(call_with([&](int value) { return value + ++calls; }, 10), 11);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(call_with(std::negate<int>(), 21), -21);
}

TEST(Log, DialDecidesWhatIsPrinted) {
  set_log_level(1);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "hidden");
  log(LogLevel::kWarning, "shown {} literally");
  set_log_level(4);
  log(LogLevel::kTrace, "traced");
  set_log_level(1);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("shown {} literally"));
  EXPECT_THAT(text, HasSubstr("traced"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("hidden")));
}

}  // namespace
}  // namespace strata
