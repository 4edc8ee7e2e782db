// SPDX-License-Identifier: Apache-2.0
// Memory that ranks divide: whatever order each asks in, a unit is whole where it is needed, and
// what others keep of it takes no memory where it is not.
#include "backend/divided_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "backend/arena.h"
#include "backend/thread_comm.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/rng.h"

namespace strata {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kLarge = (9 << 20) + 320;  // of several pieces a rank

uint8_t value_at(size_t unit, int64_t byte) {
  return static_cast<uint8_t>(1 + (static_cast<uint64_t>(byte) * 7 + byte / 251 + unit * 31) % 255);
}

// Three units whose ranges lie among each other, filled as every rank has them at first.
class Units {
 public:
  explicit Units(const MemoryShare& share)
      : arena_(sparse_allocator(), 64 + 3 * 8192 + 2 * kLarge + 64) {
    ranges_.resize(3);
    add(0, 64);
    add(1, kLarge);
    add(0, 8192);
    add(2, 64);
    add(0, kLarge);
    for (size_t unit = 0; unit < ranges_.size(); ++unit) {
      int64_t at = 0;
      for_each(unit, [&](uint8_t& byte) { byte = value_at(unit, at++); });
    }
    memory.emplace(ranges_, share, cpu_allocator());
  }
  [[nodiscard]] int64_t bytes(size_t unit) const {
    return std::accumulate(ranges_[unit].begin(), ranges_[unit].end(), int64_t{0},
                           [](int64_t sum, const PageRange& range) { return sum + range.bytes; });
  }
  // Of bytes [first, end) of a unit.
  [[nodiscard]] bool is_whole(size_t unit, const BytePart& part) const {
    int64_t at = 0;
    bool whole = true;
    for_each(unit, [&](const uint8_t& byte) {
      if (at >= part.first && at < part.end) whole = whole && byte == value_at(unit, at);
      ++at;
    });
    return whole;
  }
  [[nodiscard]] bool is_zero(size_t unit, const BytePart& part) const {
    int64_t at = 0;
    bool zero = true;
    for_each(unit, [&](const uint8_t& byte) {
      if (at >= part.first && at < part.end) zero = zero && byte == 0;
      ++at;
    });
    return zero;
  }
  [[nodiscard]] int64_t resident_bytes() const {
    std::vector<unsigned char> pages(static_cast<size_t>(arena_.size() / kPage + 1));
    EXPECT_EQ(::mincore(first_, static_cast<size_t>(arena_.size()), pages.data()), 0);
    return kPage * std::count_if(pages.begin(), pages.end(),
                                 [](unsigned char page) { return (page & 1) != 0; });
  }

 private:
  void add(size_t unit, int64_t bytes) {
    void* const data = arena_.take(bytes);
    if (first_ == nullptr) first_ = data;
    ranges_[unit].push_back({data, bytes});
  }
  template <typename Body>
  void for_each(size_t unit, Body body) const {
    for (const PageRange& range : ranges_[unit]) {
      auto* const data = static_cast<uint8_t*>(range.data);
      for (int64_t i = 0; i < range.bytes; ++i) body(data[i]);
    }
  }

  Arena arena_;
  void* first_ = nullptr;
  std::vector<std::vector<PageRange>> ranges_;

 public:
  std::optional<DividedMemory> memory;  // ends before what it is made of
};

TEST(DividedMemory, PartsAreAllOfAUnit) {
  for (const int64_t bytes : {0L, 1L, 64L, 65L, 1000L, kLarge}) {
    for (const int ranks : {2, 3, 7}) {
      int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const BytePart part = part_of(bytes, {rank, ranks});
        EXPECT_EQ(part.first, end);
        EXPECT_GE(part.size(), 0);
        EXPECT_LE(part.size(), bytes / ranks + 64);
        EXPECT_EQ(num_questions(part) == 0, part.size() == 0);
        end = part.end;
      }
      EXPECT_EQ(end, bytes);
    }
  }
}

// Each rank asks in an order of its own, one of them for nothing.
TEST(DividedMemory, IsWholeWhereItIsNeeded) {
  for (const int ranks : {2, 4}) {
    std::vector<int64_t> answered(static_cast<size_t>(ranks)), asked(answered);
    std::vector<int64_t> want_answered(answered), want_asked(answered);
    Mutex mutex;
    run_ranks(ranks, [&](Comm& comm) {
      Units units({comm.rank(), ranks});
      DividedMemory& memory = *units.memory;
      memory.connect_ranks(comm, /*first_tag=*/50);
      std::vector<bool> here(3);
      const Counter random{.seed = 3, .stream = static_cast<uint64_t>(comm.rank())};
      for (uint64_t i = 0; i < 40 && comm.rank() + 1 < ranks; ++i) {
        const size_t unit = random.words(i)[0] % 3;
        if (here[unit] && random.words(i)[1] % 2 == 0) {
          memory.let_go(unit);
          here[unit] = false;
          continue;
        }
        memory.fetch(unit);
        memory.fetch(unit);  // which changes nothing
        if (!here[unit]) {
          const MutexLock lock(mutex);
          for (int owner = 0; owner < ranks; ++owner) {
            const BytePart part = part_of(units.bytes(unit), {owner, ranks});
            if (owner == comm.rank()) continue;
            want_answered[static_cast<size_t>(owner)] += part.size();
            want_asked[static_cast<size_t>(comm.rank())] += kQuestionBytes * num_questions(part);
          }
        }
        here[unit] = true;
        if (i % 3 == 0) continue;  // others may come meanwhile
        memory.wait_for(unit);
        EXPECT_TRUE(units.is_whole(unit, {0, units.bytes(unit)})) << comm.rank() << " " << unit;
      }
      for (size_t unit = 0; unit < 3; ++unit) {
        if (here[unit]) memory.wait_for(unit);
      }
      // Own parts never went.
      for (size_t unit = 0; unit < 3; ++unit)
        EXPECT_TRUE(units.is_whole(unit, part_of(units.bytes(unit), {comm.rank(), ranks})));
      std::vector<double> all;
      comm.all_gather({}, all);
      answered[static_cast<size_t>(comm.rank())] = memory.answered_bytes();
      asked[static_cast<size_t>(comm.rank())] = memory.asked_bytes();
    });
    EXPECT_EQ(answered, want_answered);
    EXPECT_EQ(asked, want_asked);
    EXPECT_GT(answered.back(), 0);
  }
}

TEST(DividedMemory, TakesNoMemoryForWhatOthersKeep) {
  run_ranks(3, [](Comm& comm) {
    const MemoryShare share = {comm.rank(), 3};
    Units units(share);
    EXPECT_GE(units.resident_bytes(), 2 * kLarge);
    DividedMemory& memory = *units.memory;
    memory.connect_ranks(comm, 0);
    const int64_t own =
        part_of(units.bytes(0), share).size() + part_of(units.bytes(1), share).size();
    constexpr int64_t kBorders = 16 * kPage;
    EXPECT_LE(units.resident_bytes(), own + kBorders);
    memory.fetch(1);
    memory.wait_for(1);
    EXPECT_GE(units.resident_bytes(), own - kBorders + kLarge - kLarge / 3);
    memory.let_go(1);
    memory.fetch(2);
    memory.wait_for(2);  // what was asked for before is done
    EXPECT_LE(units.resident_bytes(), own + kBorders);
    const BytePart part = part_of(units.bytes(1), share);
    EXPECT_TRUE(units.is_whole(1, part));
    EXPECT_TRUE(units.is_zero(1, {0, part.first}));
    EXPECT_TRUE(units.is_zero(1, {part.end, units.bytes(1)}));
  });
}

// One that has thrown does not wait for those that it stops, who wait for it.
TEST(DividedMemory, AFailedRankStopsThoseThatWait) {
  const auto run = [] {
    run_ranks(3, [](Comm& comm) {
      Units units({comm.rank(), 3});
      units.memory->connect_ranks(comm, 0);
      if (comm.rank() == 1) throw Error(ErrorCode::kInvalidArgument, "rank 1 found a fault");
      int never = 0;
      for (int i = 0; i < 3; ++i) {
        units.memory->fetch(1);
        units.memory->wait_for(1);
        units.memory->let_go(1);
      }
      comm.receive_bytes(1, 9, &never, sizeof(never));
    });
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1 found a fault");
  }
}

}  // namespace
}  // namespace strata
