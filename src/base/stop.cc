// SPDX-License-Identifier: Apache-2.0
#include "base/stop.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace strata {
namespace {

std::atomic<int> asked_by{0};       // the signal; 0: none yet
std::atomic<bool> insisted{false};  // whether SIGINT or SIGTERM has come
std::atomic<const char*> notice_text{nullptr};
std::atomic<bool> ends_at_first{false};
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

// Whether a second signal of this kind ends the process.
bool insists(int signal) { return signal == SIGINT || signal == SIGTERM; }

// Only what a signal handler may call, here and below. Nothing can be done where stderr is gone.
void write_notice(const char* notice) {
  if (::write(STDERR_FILENO, "\n", 1) == 1 &&
      ::write(STDERR_FILENO, notice, std::strlen(notice)) > 0) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, "\n", 1);
  }
}

void on_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  const bool is_first = asked_by.compare_exchange_strong(none, signal);
  const bool insists_again = insists(signal) && insisted.exchange(true);
  const char* notice = notice_text.load();
  if (is_first && notice != nullptr && *notice != '\0') write_notice(notice);
  if (insists_again || ends_at_first.load()) ::_exit(128 + signal);
  errno = saved_errno;
}

void install_handler(int signal) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  CHECK(::sigaction(signal, &action, nullptr) == 0, signal);
}

}  // namespace

StopSignals::StopSignals(const char* notice, First first, Work work) {
  CHECK(notice_text.exchange(notice) == nullptr);
  ends_at_first.store(first == First::kEnds);
  forget();
  for (size_t i = 0; i < kSignals.size(); ++i) {
    const int signal = kSignals.at(i);
    struct sigaction& before = before_.at(i);
    CHECK(::sigaction(signal, nullptr, &before) == 0, signal);
    const bool is_noted = insists(signal) || (work == Work::kToLose &&
                                              !(signal == SIGHUP && before.sa_handler == SIG_IGN));
    if (is_noted) install_handler(signal);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals.at(i), &before_.at(i), nullptr);
  notice_text.store(nullptr);
}

bool StopSignals::asked() { return asked_by.load() != 0; }

void StopSignals::ask(int signal) { asked_by.store(signal); }

int StopSignals::exit_code() { return asked() ? 128 + asked_by.load() : 0; }

void StopSignals::forget() {
  asked_by.store(0);
  insisted.store(false);
}

}  // namespace strata
