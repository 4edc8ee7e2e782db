// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/interrupts.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/check.h"

namespace strata::apps {
namespace {

std::atomic<bool> is_noted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

int wake_ends[2] = {-1, -1};  // a pipe that is read where input is waited for

void on_interrupt(int) {
  is_noted.store(true);
  Interrupts::wake();
}

}  // namespace

Interrupts::Interrupts() {
  is_noted.store(false);
  CHECK(::pipe2(wake_ends, O_CLOEXEC | O_NONBLOCK) == 0, errno);
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  CHECK(::sigaction(SIGINT, &action, &before_) == 0, errno);
}

Interrupts::~Interrupts() {
  ::sigaction(SIGINT, &before_, nullptr);
  for (int& end : wake_ends) {
    ::close(end);
    end = -1;
  }
}

bool Interrupts::noted() { return is_noted.load(); }

void Interrupts::forget() { is_noted.store(false); }

bool Interrupts::wait_for_input() {
  pollfd ready[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                    {.fd = wake_ends[0], .events = POLLIN, .revents = 0}};
  while (::poll(ready, 2, -1) < 0) CHECK(errno == EINTR, errno);
  if (ready[1].revents == 0) return true;
  char bytes[64];
  while (::read(wake_ends[0], bytes, sizeof(bytes)) > 0) {
  }
  return false;
}

// A pipe that is full wakes as well.
void Interrupts::wake() {
  const int was = errno;
  [[maybe_unused]] const ssize_t written = ::write(wake_ends[1], "", 1);
  errno = was;
}

}  // namespace strata::apps
