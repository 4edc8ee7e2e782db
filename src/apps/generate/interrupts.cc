#include "apps/generate/interrupts.h"

#include <atomic>

#include "base/check.h"

namespace strata::apps {
namespace {

std::atomic<bool> is_noted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) { is_noted.store(true); }

}  // namespace

Interrupts::Interrupts() {
  is_noted.store(false);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // of writes; libedit's handler breaks off its reads
  sigemptyset(&action.sa_mask);
  CHECK(::sigaction(SIGINT, &action, &before_) == 0);
}

Interrupts::~Interrupts() { ::sigaction(SIGINT, &before_, nullptr); }

bool Interrupts::noted() { return is_noted.load(); }

void Interrupts::forget() { is_noted.store(false); }

}  // namespace strata::apps
