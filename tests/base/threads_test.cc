// SPDX-License-Identifier: Apache-2.0
#include "base/threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/base/sanitizer.h"

namespace strata {
namespace {

constexpr int64_t kCounts[] = {0, 1, 2, 3, 6, 7, 8, 100, 10'007};

class ThreadPoolTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 7, 16));

TEST_P(ThreadPoolTest, RunCoversEveryIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (const int64_t count : kCounts) {
    std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
    pool.run(count, [&](int64_t begin, int64_t end, int worker) {
      EXPECT_LT(begin, end);
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, GetParam());
      for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
    });
    for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
  }
}

TEST_P(ThreadPoolTest, RunSplitsTheSameWayEveryTime) {
  ThreadPool pool(GetParam());
  const auto split = [&] {
    std::vector<std::tuple<int64_t, int64_t>> parts(static_cast<size_t>(GetParam()));
    pool.run(1'001, [&](int64_t begin, int64_t end, int worker) {
      parts[static_cast<size_t>(worker)] = {begin, end};
    });
    return parts;
  };
  const auto first = split();
  for (int repeat = 0; repeat < 50; ++repeat) EXPECT_EQ(split(), first);
}

TEST_P(ThreadPoolTest, RunEachTakesEveryItemOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t count : kCounts) {
    std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
    std::atomic<int> busy[16] = {};
    pool.run_each(count, [&](int64_t item, int worker) {
      // Per-worker scratch: no two items of one worker at the same time.
      EXPECT_EQ(busy[worker].fetch_add(1), 0);
      ++hits[static_cast<size_t>(item)];
      busy[worker].fetch_sub(1);
    });
    for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
  }
}

// What one region wrote, plainly, the next one and the caller read: tsan would see a missing edge.
TEST_P(ThreadPoolTest, RegionsAreOrdered) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(997, 0);
  const auto count = static_cast<int64_t>(values.size());
  for (int round = 0; round < 300; ++round) {
    pool.run(count, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(count - 1 - i)];
    });
  }
  for (const int64_t value : values) EXPECT_EQ(value, 300);
}

// What breaks in uses the team itself; every item still runs once, and regions stay ordered.
TEST_P(ThreadPoolTest, BreaksFallBetweenItemsAndRegions) {
  ThreadPool pool(GetParam());
  for (const int64_t count : kCounts) {
    std::vector<int64_t> values(static_cast<size_t>(count), 0);
    std::vector<std::atomic<int>> inner(97);
    std::atomic<int> busy = 0;
    int asked = 0, breaks = 0;
    const int every = count > 100 ? 61 : 5;
    const auto is_due = [&] { return ++asked % every == 0; };
    const auto run = [&] {
      EXPECT_EQ(busy.load(), 0);
      ++breaks;
      pool.run_each(97, [&](int64_t item, int) { ++inner[static_cast<size_t>(item)]; });
      pool.run(97, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++inner[static_cast<size_t>(i)];
      });
    };
    const Interruption interruption{.is_due = is_due, .run = run};
    {
      const ThreadPool::Breaks guard(pool, interruption);
      for (int round = 0; round < 20; ++round) {
        pool.run_each(count, [&](int64_t item, int) {
          ++busy;
          ++values[static_cast<size_t>(item)];
          --busy;
        });
        pool.run(count, [&](int64_t begin, int64_t end, int) {
          ++busy;
          for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
          --busy;
        });
      }
    }
    for (const int64_t value : values) EXPECT_EQ(value, 40);
    for (const auto& hits : inner) EXPECT_EQ(hits.load(), 2 * breaks);
    EXPECT_EQ(breaks > 0, count > 0);
    const int before = asked;
    pool.run_each(count, [](int64_t, int) {});
    EXPECT_EQ(asked, before);  // nobody breaks in any more
  }
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far beyond the spin time
    std::atomic<int> parts = 0;
    pool.run(3, [&](int64_t, int64_t, int) { ++parts; });
    EXPECT_EQ(parts.load(), 3);
  }
}

TEST(ThreadPool, UsesOtherThreadsAndTheCaller) {
  ThreadPool pool(4);
  std::vector<std::thread::id> ids(4);
  pool.run(4, [&](int64_t, int64_t, int worker) {
    ids[static_cast<size_t>(worker)] = std::this_thread::get_id();
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 4u);
}

#ifndef STRATA_SANITIZED  // whose own memory is more than any limit
// In a process of its own with memory for the stacks of a few: who waited for the others for ever
// would end by the alarm.
TEST(ThreadPool, ATeamThatTheSystemRefusesIsAnError) {
  const auto start_many = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit = {static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + (64 << 20)),
                          RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    ::alarm(20);
    try {
      const ThreadPool pool(256);
    } catch (const std::exception&) {
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(start_many(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadPool, ZeroMeansAllUsableCores) { EXPECT_GE(ThreadPool().num_threads(), 1); }

}  // namespace
}  // namespace strata
