// SPDX-License-Identifier: Apache-2.0
// Counts what a test program takes from its heap: it replaces operator new, so one source of a
// program includes it.
//   const size_t bytes = heap_peak_of([&] { run(); });
#pragma once
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/base/heap_limit.h"

namespace strata::testing {

inline std::atomic<int64_t> heap_live{0};
inline std::atomic<int64_t> heap_peak{0};

inline void* counted(void* data) {
  if (data == nullptr || --allocations_left < 0) {
    std::free(data);
    throw std::bad_alloc();
  }
  const auto bytes = static_cast<int64_t>(::malloc_usable_size(data));
  const int64_t live = heap_live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = heap_peak.load(std::memory_order_relaxed);
  while (peak < live && !heap_peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
  return data;
}
inline void uncount(void* data) {
  if (data == nullptr) return;
  heap_live.fetch_sub(static_cast<int64_t>(::malloc_usable_size(data)), std::memory_order_relaxed);
  std::free(data);
}

// Bytes that `run` held at most beyond what there was before. Of one thread's test: others count
// too.
template <typename Run>
size_t heap_peak_of(Run&& run) {
  const int64_t before = heap_live.load();
  heap_peak.store(before);
  run();
  return static_cast<size_t>(heap_peak.load() - before);
}

}  // namespace strata::testing

// Clang builds the sanitizers here, and they keep these names for themselves: nothing is counted.
#if !defined(__clang__)
[[gnu::noinline]] void* operator new(size_t bytes) {
  return strata::testing::counted(std::malloc(bytes == 0 ? 1 : bytes));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto step = static_cast<size_t>(alignment);
  return strata::testing::counted(std::aligned_alloc(step, (bytes + step) / step * step));
}
[[gnu::noinline]] void operator delete(void* data) noexcept { strata::testing::uncount(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept {
  strata::testing::uncount(data);
}
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept {
  strata::testing::uncount(data);
}
[[gnu::noinline]] void operator delete(void* data, size_t, std::align_val_t) noexcept {
  strata::testing::uncount(data);
}
#endif
