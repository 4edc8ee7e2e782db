// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/path_table.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kBlock = 1 << 20;

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The seconds that the iterations take on all threads at once.
double time_iterations(CpuBackend& backend, const LimitLoop& loop, int64_t iterations) {
  return seconds_of([&] {
    backend.pool().run(backend.pool().num_threads(), [&](int64_t begin, int64_t end, int) {
      for (int64_t part = begin; part < end; ++part) loop.run(iterations);
    });
  });
}

// So many that they come near to `seconds`, after `iterations` took `elapsed`.
int64_t more_iterations(int64_t iterations, double elapsed, double seconds) {
  const double more = elapsed > 0 ? seconds / elapsed : 100.0;
  return static_cast<int64_t>(static_cast<double>(iterations) * std::clamp(more, 1.5, 100.0));
}

// Reads a multiple of 512 bytes (16-byte aligned) and returns something that depends on all of
// them. Sixteen-byte loads saturate memory: wider ones read no faster, and prefetching by hand is
// slower than what the hardware foresees.
uint64_t xor_all_words(const void* data, int64_t bytes) {
  typedef uint64_t Vector __attribute__((vector_size(16)));
  constexpr int kVectors = 32;
  Vector sum[8] = {};
  const char* at = static_cast<const char*>(data);
  for (int64_t block = 0; block < bytes; block += kVectors * 16, at += kVectors * 16) {
#pragma GCC unroll 32
    for (int v = 0; v < kVectors; ++v) {
      sum[v % 8] ^= *reinterpret_cast<const Vector*>(at + v * 16);
    }
  }
  Vector all = {};
  for (const Vector part : sum) all ^= part;
  return all[0] ^ all[1];
}

}  // namespace

double measure_matrix_flops(CpuBackend& backend, DType dtype, double seconds) {
  const LimitLoop loop = path_row(backend.path()).limit(dtype == DType::kBF16);
  const int threads = backend.pool().num_threads();
  int64_t iterations = 1000;
  double elapsed = time_iterations(backend, loop, iterations);
  while (elapsed < seconds / 2) {
    iterations = more_iterations(iterations, elapsed, seconds);
    elapsed = time_iterations(backend, loop, iterations);
  }
  return static_cast<double>(iterations * loop.flops) * threads / elapsed;
}

double measure_read_bandwidth(CpuBackend& backend, const void* data, int64_t bytes) {
  const HostAccess access(backend.allocator());
  std::atomic<uint64_t> sum{0};  // the reads must have a use
  const double elapsed = seconds_of([&] {
    backend.pool().run(bytes / kBlock, [&](int64_t begin, int64_t end, int) {
      const char* part = static_cast<const char*>(data) + begin * kBlock;
      sum.fetch_xor(xor_all_words(part, (end - begin) * kBlock), std::memory_order_relaxed);
    });
  });
  CHECK(sum.load() == 0);  // an even number of equal words
  return static_cast<double>(bytes) / elapsed;
}

}  // namespace strata::ops::cpu
