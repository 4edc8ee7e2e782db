// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace strata {
namespace {

// Its own thread writes it; who ends the trace reads it.
struct Ring {
  Mutex mutex;
  std::vector<TracedSpan> spans GUARDED_BY(mutex);
  int64_t num_recorded GUARDED_BY(mutex) = 0;
  std::string name;  // before anybody else sees the ring
};

struct Recorder {
  Mutex mutex;
  std::vector<std::shared_ptr<Ring>> rings GUARDED_BY(mutex);
  std::atomic<uint64_t> generation{0};  // of the trace: rings of one before it are not written
  std::atomic<int64_t> begin_ns{0};
};

Recorder& recorder() {
  static Recorder* one = new Recorder;  // threads may outlive main
  return *one;
}

struct ThreadState {
  std::string name;
  uint64_t generation = 0;
  std::shared_ptr<Ring> ring;
};

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

// In place of the oldest where the ring is full.
void write_to_ring(Ring& ring, const TracedSpan& span) {
  const MutexLock lock(ring.mutex);
  if (ring.spans.size() < kSpansOfAThread) {
    ring.spans.push_back(span);
  } else {
    ring.spans[static_cast<size_t>(ring.num_recorded) % kSpansOfAThread] = span;
  }
  ++ring.num_recorded;
}

TracedThread read_ring(Ring& ring) {
  const MutexLock lock(ring.mutex);
  TracedThread thread{.name = ring.name};
  const auto kept = static_cast<int64_t>(ring.spans.size());
  thread.num_lost = ring.num_recorded - kept;
  // The oldest is where the next one would have been written.
  const int64_t oldest = thread.num_lost > 0 ? ring.num_recorded % kept : 0;
  thread.spans.assign(ring.spans.begin() + oldest, ring.spans.end());
  thread.spans.insert(thread.spans.end(), ring.spans.begin(), ring.spans.begin() + oldest);
  return thread;
}

Ring& ensure_ring() {
  ThreadState& state = thread_state();
  Recorder& all = recorder();
  if (state.ring != nullptr && state.generation == all.generation.load(std::memory_order_acquire)) {
    return *state.ring;
  }
  const auto ring = std::make_shared<Ring>();
  {
    const MutexLock lock(ring->mutex);
    ring->spans.reserve(kSpansOfAThread);
  }
  const MutexLock lock(all.mutex);
  state.generation = all.generation.load(std::memory_order_relaxed);
  ring->name = state.name.empty() ? "thread " + std::to_string(all.rings.size()) : state.name;
  all.rings.push_back(ring);
  state.ring = ring;
  return *ring;
}

}  // namespace

namespace internal {

int64_t trace_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void record_span(const TracedSpan& span) {
  if (!trace_on.load(std::memory_order_acquire)) return;  // it is over
  const int64_t begin = recorder().begin_ns.load(std::memory_order_relaxed);
  if (span.start_ns < begin) return;  // begun in a trace before this one
  TracedSpan kept = span;
  kept.start_ns -= begin;
  kept.end_ns = trace_clock() - begin;
  write_to_ring(ensure_ring(), kept);
}

}  // namespace internal

void start_trace() {
  Recorder& all = recorder();
  const MutexLock lock(all.mutex);
  all.rings.clear();
  all.begin_ns.store(internal::trace_clock(), std::memory_order_relaxed);
  all.generation.fetch_add(1, std::memory_order_release);
  internal::trace_on.store(true, std::memory_order_release);
}

std::vector<TracedThread> stop_trace() {
  internal::trace_on.store(false, std::memory_order_relaxed);
  Recorder& all = recorder();
  const MutexLock lock(all.mutex);
  std::vector<TracedThread> threads;
  for (const std::shared_ptr<Ring>& ring : all.rings) threads.push_back(read_ring(*ring));
  all.rings.clear();
  all.generation.fetch_add(1, std::memory_order_release);
  return threads;
}

void name_thread(std::string name) { thread_state().name = std::move(name); }

}  // namespace strata
