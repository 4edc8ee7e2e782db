// SPDX-License-Identifier: Apache-2.0
// What is said to a reader who has gone ends nothing.
#include "base/say.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace strata {
namespace {

TEST(Say, ToAReaderWhoHasGoneEndsNothing) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(1);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ignore_closed_pipes();
    for (int i = 0; i < 3; ++i) {
      say("anybody there?\n");
      print_result("no\n");
    }
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

}  // namespace
}  // namespace strata
