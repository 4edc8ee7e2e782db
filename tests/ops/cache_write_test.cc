// SPDX-License-Identifier: Apache-2.0
#include "ops/cache_write.h"

#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

// Runs of rows, of a strided tensor, to places that lie apart; what no run names stays.
TEST(CacheWrite, RunsGoWhereTheyShould) {
  constexpr int64_t kWidth = 300, kPlaces = 12;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Buffer x = random_buffer(dtype, {70, kWidth}, {.seed = 1, .row_stride = kWidth + 5});
    const auto out = run_everywhere([&](Backend& backend) {
      std::vector<Buffer> cache = {filled_buffer(dtype, {kPlaces, 8, kWidth}, 2)};
      std::vector<CacheSegment> runs;
      for (int64_t place = 0; place + 1 < kPlaces; ++place) {
        const int64_t begin = place * 6;
        runs.push_back({begin, begin + place % 5, cache[0].view().at(place).data});
      }
      cache_write(backend, x, runs);
      return cache;
    });
    Buffer want = filled_buffer(dtype, {kPlaces, 8, kWidth}, 2);
    for (int64_t place = 0; place + 1 < kPlaces; ++place) {
      for (int64_t i = 0; i < place % 5 * kWidth; ++i) {
        want.set(place * 8 * kWidth + i, x.get(place * 6 * kWidth + i));
      }
    }
    expect_same_bits(out[0], want);
  }
}

TEST(CacheWrite, RefusesRowsThatAreNotThere) {
  CpuBackend backend(choose_cpu_path(), 1);
  const Buffer x(DType::kF32, {3, 2});
  float to[8];
  const CacheSegment run = {2, 4, to};
  EXPECT_DEATH(cache_write(backend, x, {&run, 1}), "CHECK failed");
}

}  // namespace
}  // namespace strata::ops
