// SPDX-License-Identifier: Apache-2.0
#include "base/stop.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace strata {
namespace {

std::atomic<int> asked_by{0};  // the signal; 0: none yet
std::atomic<const char*> notice_text{nullptr};
std::atomic<bool> ends_at_first{false};
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

// Only what a signal handler may call, here and below. Nothing can be done where stderr is gone.
void write_notice(const char* notice) {
  if (::write(STDERR_FILENO, "\n", 1) == 1 &&
      ::write(STDERR_FILENO, notice, std::strlen(notice)) > 0) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, "\n", 1);
  }
}

void on_signal(int signal) {
  const int saved_errno = errno;
  const bool is_first = asked_by.exchange(signal) == 0;
  const char* notice = notice_text.load();
  if (is_first && notice != nullptr && *notice != '\0') write_notice(notice);
  if (!is_first || ends_at_first.load()) ::_exit(128 + signal);
  errno = saved_errno;
}

void install_handler(int signal, struct sigaction& before) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  CHECK(::sigaction(signal, &action, &before) == 0, signal);
}

}  // namespace

StopSignals::StopSignals(const char* notice, First first, Hangup hangup) {
  CHECK(notice_text.exchange(notice) == nullptr);
  ends_at_first.store(first == First::kEnds);
  asked_by.store(0);
  install_handler(SIGINT, before_int_);
  install_handler(SIGTERM, before_term_);
  CHECK(::sigaction(SIGHUP, nullptr, &before_hangup_) == 0);
  if (hangup == Hangup::kNoted && before_hangup_.sa_handler != SIG_IGN)
    install_handler(SIGHUP, before_hangup_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &before_int_, nullptr);
  ::sigaction(SIGTERM, &before_term_, nullptr);
  ::sigaction(SIGHUP, &before_hangup_, nullptr);
  notice_text.store(nullptr);
}

bool StopSignals::asked() { return asked_by.load() != 0; }

void StopSignals::ask(int signal) { asked_by.store(signal); }

int StopSignals::exit_code() { return asked() ? 128 + asked_by.load() : 0; }

void StopSignals::forget() { asked_by.store(0); }

}  // namespace strata
