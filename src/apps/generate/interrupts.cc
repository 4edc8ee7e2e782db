// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/interrupts.h"

#include <unistd.h>

#include <atomic>

#include "base/check.h"

namespace strata::apps {
namespace {

std::atomic<bool> is_noted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<bool> breaks_reads{false};

void on_interrupt(int) {
  is_noted.store(true);
  if (breaks_reads.load()) ::alarm(1);
}

void on_alarm(int) {}

void handle(int signal, void (*handler)(int), int flags, struct sigaction& before) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  CHECK(::sigaction(signal, &action, &before) == 0, signal);
}

}  // namespace

Interrupts::Interrupts() {
  is_noted.store(false);
  handle(SIGINT, on_interrupt, SA_RESTART, before_int_);  // libedit's own breaks off its reads
  handle(SIGALRM, on_alarm, 0, before_alarm_);
}

Interrupts::~Interrupts() {
  ::sigaction(SIGINT, &before_int_, nullptr);
  ::sigaction(SIGALRM, &before_alarm_, nullptr);
}

bool Interrupts::noted() { return is_noted.load(); }

void Interrupts::forget() { is_noted.store(false); }

void Interrupts::break_reads(bool on) {
  breaks_reads.store(on);
  if (!on) ::alarm(0);
}

}  // namespace strata::apps
