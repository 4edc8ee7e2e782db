// SPDX-License-Identifier: Apache-2.0
#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/cores.h"
#include "base/trace.h"

namespace strata {
namespace {

// Short: on a shared core a spinning peer takes the time slice of the one it waits for.
constexpr auto kSpinTime = std::chrono::microseconds(60);
constexpr int kSpinBatch = 64;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until value != old: spins, then sleeps on the atomic.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    for (int i = 0; i < kSpinBatch; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      relax();
    }
    if (std::chrono::steady_clock::now() - start > kSpinTime) break;
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::State {
  State(int n, bool idle) : num_threads(n), is_idle(idle) {}
  // Also where the system gives no more threads: those that there are would be waited for.
  ~State() {
    stop.store(true, std::memory_order_release);
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
  }

  const int num_threads;
  const bool is_idle;
  std::atomic<uint32_t> generation{0};  // a region starts: written by the caller, read by workers
  std::atomic<uint32_t> remaining{0};   // workers still in the region
  std::atomic<bool> stop{false};
  // Written before `generation` is released, read after it is acquired.
  const FunctionRef<void(int64_t, int64_t, int)>* body = nullptr;
  int64_t count = 0;
  std::atomic<int64_t> next{0};                // run_each's shared counter
  std::atomic<bool> pausing{false};            // its workers take no further item
  const Interruption* interruption = nullptr;  // of the caller's thread
  std::vector<std::jthread> workers;

  void run_part(int worker) {
    const int64_t begin = count * worker / num_threads;
    const int64_t end = count * (worker + 1) / num_threads;
    if (begin < end) (*body)(begin, end, worker);
  }

  void worker_loop(int worker) {
    name_thread("worker " + std::to_string(worker));
    uint32_t seen = 0;
    while (true) {
      seen = wait_for_change(generation, seen);
      if (stop.load(std::memory_order_acquire)) return;
      const TraceSpan span("work");  // recorded when nobody waits for the part any more
      run_part(worker);
      if (remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : ThreadPool(num_threads, /*is_idle=*/false) {}

ThreadPool::ThreadPool(int num_threads, bool is_idle)
    : state_(std::make_unique<State>(num_threads > 0 ? num_threads : usable_threads(), is_idle)) {
  CHECK(num_threads >= 0, num_threads);
  for (int w = 1; w < state_->num_threads && !is_idle; ++w) {
    state_->workers.emplace_back([state = state_.get(), w] { state->worker_loop(w); });
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const { return state_->num_threads; }

bool ThreadPool::is_break_due() const {
  return state_->interruption != nullptr && state_->interruption->is_due();
}

void ThreadPool::take_break() {
  const Interruption* interruption = std::exchange(state_->interruption, nullptr);
  interruption->run();
  state_->interruption = interruption;
}

ThreadPool::Breaks::Breaks(ThreadPool& pool, const Interruption& interruption) : pool_(pool) {
  CHECK(pool_.state_->interruption == nullptr);
  pool_.state_->interruption = &interruption;
}

ThreadPool::Breaks::~Breaks() { pool_.state_->interruption = nullptr; }

void ThreadPool::run(int64_t count, FunctionRef<void(int64_t, int64_t, int)> body) {
  if (count <= 0 || state_->is_idle) return;
  if (is_break_due()) take_break();
  run_region(count, body);
}

void ThreadPool::run_region(int64_t count, FunctionRef<void(int64_t, int64_t, int)> body) {
  State& state = *state_;
  if (state.num_threads == 1 || count == 1) {
    body(0, count, 0);
    return;
  }
  state.body = &body;
  state.count = count;
  state.remaining.store(static_cast<uint32_t>(state.num_threads - 1), std::memory_order_relaxed);
  state.generation.fetch_add(1, std::memory_order_acq_rel);
  state.generation.notify_all();
  state.run_part(0);
  uint32_t left = state.remaining.load(std::memory_order_acquire);
  while (left != 0) left = wait_for_change(state.remaining, left);
}

bool ThreadPool::run_items_until_pause(int64_t count, int worker,
                                       FunctionRef<void(int64_t, int)> body) {
  State& state = *state_;
  while (!state.pausing.load(std::memory_order_relaxed)) {
    const int64_t item = state.next.fetch_add(1, std::memory_order_relaxed);
    if (item >= count) return false;
    body(item, worker);
    if (worker == 0 && is_break_due()) state.pausing.store(true, std::memory_order_relaxed);
  }
  return true;
}

void ThreadPool::run_each(int64_t count, FunctionRef<void(int64_t, int)> body) {
  State& state = *state_;
  if (count <= 0 || state.is_idle) return;
  int64_t first = 0;
  bool due = is_break_due();
  do {
    if (due) take_break();
    state.next.store(first, std::memory_order_relaxed);
    state.pausing.store(false, std::memory_order_relaxed);
    const int64_t parts = std::min<int64_t>(count - first, state.num_threads);
    run_region(parts, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t part = begin; part < end; ++part) {
        if (!run_items_until_pause(count, worker, body)) return;
      }
    });
    first = state.next.load(std::memory_order_relaxed);
    due = state.pausing.load(std::memory_order_relaxed);
  } while (first < count);
}

}  // namespace strata
