// SPDX-License-Identifier: Apache-2.0
// Stop signals in processes of their own: what the first one does, what the second one does, and
// what is left when it is over.
#include "base/stop.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace strata {
namespace {

// The exit code of a process that does this, with signals as a shell leaves them; 128 + the signal
// where one killed it, as in a shell.
int exit_code_of(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGHUP, SIG_DFL);
    std::fclose(stderr);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(StopSignals, TheFirstIsNoted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    EXPECT_EQ(exit_code_of([signal] {
                const StopSignals signals("stopping");
                if (StopSignals::asked() || StopSignals::exit_code() != 0) return 1;
                std::raise(signal);
                return StopSignals::asked() ? StopSignals::exit_code() : 2;
              }),
              128 + signal);
  }
}

TEST(StopSignals, AHangupIsNotedWhereThatIsSaidAndIgnoredUnderNohup) {
  EXPECT_EQ(exit_code_of([] {
              std::signal(SIGHUP, SIG_DFL);
              const StopSignals signals("", StopSignals::First::kNoted, StopSignals::Work::kToLose);
              std::raise(SIGHUP);
              return StopSignals::asked() ? StopSignals::exit_code() : 2;
            }),
            128 + SIGHUP);
  EXPECT_EQ(exit_code_of([] {
              std::signal(SIGHUP, SIG_IGN);
              const StopSignals signals("", StopSignals::First::kNoted, StopSignals::Work::kToLose);
              std::raise(SIGHUP);
              return StopSignals::asked() ? 1 : 0;
            }),
            0);
  EXPECT_EQ(exit_code_of([] {
              std::signal(SIGHUP, SIG_DFL);
              const StopSignals signals("");
              std::raise(SIGHUP);
              return 0;
            }),
            1000 + SIGHUP);
}

TEST(StopSignals, OfBatchSystemsAreNotedWhereThereIsSomethingToLose) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    EXPECT_EQ(exit_code_of([signal] {
                const StopSignals signals("", StopSignals::First::kNoted,
                                          StopSignals::Work::kToLose);
                std::raise(signal);
                return StopSignals::exit_code();
              }),
              128 + signal);
    EXPECT_EQ(exit_code_of([signal] {
                const StopSignals signals("");
                std::raise(signal);
                return 0;
              }),
              1000 + signal);
  }
}

// A shell sends SIGHUP twice, and Slurm SIGTERM behind the signal that it was asked for: what began
// to save goes on. Ctrl-C, of which two insist, counts from its first.
TEST(StopSignals, OnesThatNobodyTypesNeverEndAtOnce) {
  EXPECT_EQ(exit_code_of([] {
              const StopSignals signals("", StopSignals::First::kNoted, StopSignals::Work::kToLose);
              for (const int signal : {SIGHUP, SIGHUP, SIGUSR1, SIGUSR2, SIGTERM, SIGHUP})
                std::raise(signal);
              return StopSignals::exit_code();
            }),
            128 + SIGHUP);
  EXPECT_EQ(exit_code_of([] {
              const StopSignals signals("", StopSignals::First::kNoted, StopSignals::Work::kToLose);
              for (const int signal : {SIGUSR1, SIGTERM, SIGTERM}) std::raise(signal);
              return 0;
            }),
            128 + SIGTERM);
}

TEST(StopSignals, TheSecondEndsAtOnce) {
  EXPECT_EQ(exit_code_of([] {
              const StopSignals signals("stopping");
              std::raise(SIGTERM);
              std::raise(SIGINT);
              return 0;
            }),
            130);
  EXPECT_EQ(exit_code_of([] {
              const StopSignals signals("stopping");
              std::raise(SIGINT);
              StopSignals::forget();
              if (StopSignals::asked()) return 1;
              std::raise(SIGINT);  // the first one again
              return StopSignals::asked() ? 0 : 2;
            }),
            0);
}

TEST(StopSignals, TheFirstMayEnd) {
  EXPECT_EQ(exit_code_of([] {
              const StopSignals signals("stopped", StopSignals::First::kEnds);
              std::raise(SIGTERM);
              return 0;
            }),
            143);
}

TEST(StopSignals, WhatWasBeforeComesBack) {
  EXPECT_EQ(exit_code_of([] {
              {
                const StopSignals signals("stopping");
              }
              std::raise(SIGTERM);
              return 0;
            }),
            1000 + SIGTERM);
  EXPECT_EQ(exit_code_of([] {
              std::signal(SIGINT, SIG_IGN);  // as a script has it for what it runs behind itself
              {
                const StopSignals signals("stopping");
                std::raise(SIGINT);
                if (!StopSignals::asked()) return 1;
              }
              std::raise(SIGINT);
              return 0;
            }),
            0);
}

TEST(StopSignals, SaysSo) {
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_DFL);
        const StopSignals signals("saving after this step");
        std::raise(SIGINT);
        std::_Exit(StopSignals::exit_code());
      },
      testing::ExitedWithCode(130), "\nsaving after this step\n");
}

}  // namespace
}  // namespace strata
