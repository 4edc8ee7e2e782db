// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "backend/memory.h"

namespace strata {
namespace {

int64_t mapped_pages() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(CpuMemory, WhatIsReleasedIsMappedNoMore) {
  constexpr int kTimes = 1000;
  Allocator& memory = cpu_allocator();
  for (const int64_t bytes : {int64_t{6} << 20, (int64_t{6} << 20) + 100}) {
    memory.release(memory.allocate(bytes), bytes);
    const int64_t before = mapped_pages();
    for (int i = 0; i < kTimes; ++i) memory.release(memory.allocate(bytes), bytes);
    EXPECT_LT(mapped_pages() - before, kTimes / 10) << bytes;
  }
}

}  // namespace
}  // namespace strata
