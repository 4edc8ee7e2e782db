// SPDX-License-Identifier: Apache-2.0
#include "backend/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace strata {
namespace {

bool aligned_to(const void* data, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

bool all_zero(const void* data, int64_t bytes) {
  const std::span view(static_cast<const unsigned char*>(data), static_cast<size_t>(bytes));
  return std::all_of(view.begin(), view.end(), [](unsigned char byte) { return byte == 0; });
}

constexpr int64_t kHuge = 2 << 20;

TEST(Memory, IsZeroedAlignedAndWritableToItsLastByte) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4095}, int64_t{4097}, kHuge - 1, kHuge, kHuge + 1,
                              3 * kHuge + 12'345}) {
    const Memory memory(cpu_allocator(), bytes);
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_TRUE(aligned_to(memory.data(), bytes >= kHuge ? kHuge : Arena::kAlignment)) << bytes;
    EXPECT_TRUE(all_zero(memory.data(), bytes)) << bytes;
    std::memset(memory.data(), 0xff, static_cast<size_t>(bytes));
  }
  EXPECT_EQ(Memory(cpu_allocator(), 0).data(), nullptr);
}

TEST(Memory, MovesItsBytes) {
  Memory first(cpu_allocator(), 100);
  void* const data = first.data();
  Memory second(std::move(first));
  EXPECT_EQ(second.data(), data);
  Memory third(cpu_allocator(), 50);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 100);
}

TEST(Arena, HandsOutAlignedPiecesThatDoNotOverlap) {
  Arena arena(cpu_allocator(), 1000);
  auto* a = static_cast<char*>(arena.take(1));
  auto* b = static_cast<char*>(arena.take(65));
  const TensorView c = arena.take(DType::kBF16, {3, 5});
  EXPECT_TRUE(aligned_to(a, 64) && aligned_to(b, 64) && aligned_to(c.data, 64));
  EXPECT_EQ(b - a, 64);
  EXPECT_EQ(static_cast<char*>(c.data) - b, 128);
  EXPECT_EQ(arena.used(), 64 + 128 + 64);
}

TEST(Arena, RefusesMoreThanItsBooking) {
  Arena arena(cpu_allocator(), 128);
  arena.take(64);
  arena.take(64);
  EXPECT_DEATH(arena.take(1), "CHECK failed");
}

TEST(Tensor, OwnsZeros) {
  const Tensor tensor(cpu_allocator(), DType::kF32, {3, 4});
  EXPECT_EQ(tensor.view().shape, (Shape{3, 4}));
  EXPECT_TRUE(all_zero(tensor.view().data, 48));
}

TEST(Scratch, MarkGivesBackWhatWasTakenAfterIt) {
  Scratch scratch(cpu_allocator(), 4096);
  void* const first = scratch.take(100);
  void* again = nullptr;
  {
    const Scratch::Mark mark(scratch);
    again = scratch.take(200);
    scratch.take(300);
  }
  EXPECT_EQ(scratch.take(50), again);
  EXPECT_NE(first, again);
  EXPECT_EQ(scratch.high_water(), 128 + 256 + 320);
  EXPECT_EQ(scratch.grown(), 0);
}

TEST(Scratch, GrowsInBlocksThatDoNotMove) {
  Scratch scratch(cpu_allocator(), 1024);
  auto* first = static_cast<char*>(scratch.take(1000));
  std::memset(first, 7, 1000);
  auto* second = static_cast<char*>(scratch.take(5'000'000));
  std::memset(second, 9, 5'000'000);
  EXPECT_EQ(first[999], 7);
  EXPECT_GE(scratch.grown(), 5'000'000);
  const int64_t grown = scratch.grown();
  for (int round = 0; round < 10; ++round) {
    const Scratch::Mark mark(scratch);
    scratch.take(1'000'000);
    scratch.take(300'000);
  }
  const int64_t settled = scratch.grown();
  for (int round = 0; round < 10; ++round) {
    const Scratch::Mark mark(scratch);
    scratch.take(1'000'000);
    scratch.take(300'000);
  }
  EXPECT_EQ(scratch.grown(), settled)
      << "a repeated step must not grow again, first growth " << grown;
}

// What work keeps lies in another scratch, so that this one serves other work before it goes on.
TEST(Scratch, HoldPutsWhatIsKeptElsewhere) {
  Scratch scratch(cpu_allocator(), 4096), held(cpu_allocator(), 1024);
  void *kept = nullptr, *temporary = nullptr;
  {
    const Scratch::Hold hold(scratch, held);
    kept = scratch.take(100, "kept");
    const Scratch::Mark mark(scratch);
    temporary = scratch.take(200);
    const Scratch::Mark inner(scratch);
    scratch.take(300);
  }
  EXPECT_EQ(held.high_water(), 128);
  EXPECT_EQ(held.peak_uses()[0].tag, "kept");
  EXPECT_EQ(scratch.high_water(), 256 + 320);
  EXPECT_EQ(scratch.take(100), temporary);
  EXPECT_NE(held.take(100), kept);
  EXPECT_EQ(held.high_water(), 256);
}

// A block that is too small for one step and a large enough one behind it: the step must find the
// latter.
TEST(Scratch, RepeatedLargeTakesReuseTheBlockThatFits) {
  Scratch scratch(cpu_allocator(), 1024);
  {
    const Scratch::Mark mark(scratch);
    scratch.take(1'500'000);
  }
  for (int step = 0; step < 100; ++step) {
    const Scratch::Mark mark(scratch);
    scratch.take(3'000'000);
  }
  EXPECT_LT(scratch.grown(), 6'000'000);
}

// Views taken before and after a growth, inside nested marks, never share a byte.
TEST(Scratch, PiecesNeverOverlapAcrossBlocksAndMarks) {
  Scratch scratch(cpu_allocator(), 4096);
  auto* outer = static_cast<char*>(scratch.take(64));
  outer[0] = 1;
  for (int round = 0; round < 3; ++round) {
    const Scratch::Mark mark(scratch);
    auto* a = static_cast<char*>(scratch.take(4000));
    auto* b = static_cast<char*>(scratch.take(3'000'000));
    std::memset(a, 2, 4000);
    std::memset(b, 3, 3'000'000);
    {
      const Scratch::Mark inner(scratch);
      std::memset(scratch.take(2'500'000), 4, 2'500'000);
    }
    std::memset(scratch.take(64), 5, 64);
    EXPECT_EQ(a[3999], 2);
    EXPECT_EQ(b[2'999'999], 3);
    EXPECT_EQ(outer[0], 1);
  }
}

TEST(Scratch, WithoutABookingEverythingIsGrowth) {
  Scratch scratch(cpu_allocator());
  {
    const Scratch::Mark mark(scratch);
    EXPECT_NE(scratch.take(10), nullptr);
  }
  EXPECT_GT(scratch.grown(), 0);
  EXPECT_EQ(scratch.high_water(), 64);
}

}  // namespace
}  // namespace strata
