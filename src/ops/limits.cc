#include "ops/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "ops/cpu/limits.h"

namespace strata::ops {
namespace {

constexpr int64_t kBlock = 1 << 20;

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double LimitProbe::matrix_flops(DType dtype, double seconds) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16, dtype);
  CHECK(seconds > 0, seconds);
  const cpu::LimitLoop loop = cpu::limit_loop(backend_.path(), dtype == DType::kBF16);
  const int threads = backend_.pool().num_threads();
  const auto run = [&](int64_t iterations) {
    return seconds_of([&] {
      backend_.pool().run(threads, [&](int64_t begin, int64_t end, int) {
        for (int64_t part = begin; part < end; ++part) loop.run(iterations);
      });
    });
  };
  int64_t iterations = 1000;
  double elapsed = run(iterations);
  while (elapsed < seconds / 2) {
    const double more = elapsed > 0 ? seconds / elapsed : 100.0;
    iterations =
        static_cast<int64_t>(static_cast<double>(iterations) * std::clamp(more, 1.5, 100.0));
    elapsed = run(iterations);
  }
  return static_cast<double>(iterations * loop.flops) * threads / elapsed;
}

double LimitProbe::read_bandwidth() {
  const HostAccess access(backend_.allocator());
  if (memory_.size() == 0) {
    memory_ = Memory(backend_.allocator(), read_bytes_ / kBlock * kBlock);
    std::memset(memory_.data(), 1,
                static_cast<size_t>(memory_.size()));  // pages that were never written are one page
  }
  std::atomic<uint64_t> sum{0};  // the reads must have a use
  const double elapsed = seconds_of([&] {
    backend_.pool().run(memory_.size() / kBlock, [&](int64_t begin, int64_t end, int) {
      const char* data = static_cast<const char*>(memory_.data()) + begin * kBlock;
      sum.fetch_xor(cpu::read_all(data, (end - begin) * kBlock), std::memory_order_relaxed);
    });
  });
  CHECK(sum.load() == 0);  // an even number of equal words
  return static_cast<double>(memory_.size()) / elapsed;
}

}  // namespace strata::ops
