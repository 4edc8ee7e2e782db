// SPDX-License-Identifier: Apache-2.0
// EndWatch: a server that does not end is ended.
#include "apps/serve/end_watch.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>

namespace strata::apps {
namespace {

constexpr int kCode = 3;
constexpr double kLong = 600;

sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// As a thread that waits for a disk: in the process of a death test alone.
[[noreturn]] void hang(double seconds, int signal) {
  const EndWatch watch(block_signals(), seconds, kCode);
  if (signal != 0) ::kill(::getpid(), signal);
  for (;;) ::pause();
}

TEST(EndWatch, EndsWhatHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(hang(0.01, 0), ::testing::ExitedWithCode(kCode), "does not end");
}

TEST(EndWatch, EndsItAtAnotherSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGTERM, SIGINT})
    EXPECT_EXIT(hang(kLong, signal), ::testing::ExitedWithCode(kCode), "does not end");
}

TEST(EndWatch, LeavesAloneWhatIsDone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end_in_time = [] {
    {
      const EndWatch watch(block_signals(), kLong, kCode);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(end_in_time(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace strata::apps
