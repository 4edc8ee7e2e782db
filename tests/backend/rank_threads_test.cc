// SPDX-License-Identifier: Apache-2.0
#include "backend/rank_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/threads.h"

namespace strata {
namespace {

// A value that goes through all ranks and comes back with one more from each.
int round_trip(Comm& comm, int value) {
  const int last = comm.size() - 1;
  if (comm.rank() > 0) comm.receive_bytes(comm.rank() - 1, 7, &value, sizeof(value));
  ++value;
  comm.send_bytes(comm.rank() == last ? 0 : comm.rank() + 1, 7, &value, sizeof(value));
  if (comm.rank() == 0) comm.receive_bytes(last, 7, &value, sizeof(value));
  return value;
}

TEST(RankThreads, RunOnePieceOfWorkAfterTheOther) {
  for (const int size : {1, 2, 3}) {
    RankThreads ranks(size);
    EXPECT_EQ(ranks.size(), size);
    std::vector<std::thread::id> ids(static_cast<size_t>(size));
    int value = 0;
    for (int i = 0; i < 50; ++i) {
      ranks.run([&](int rank) {
        const std::thread::id own = std::this_thread::get_id();
        EXPECT_TRUE(i == 0 || ids[static_cast<size_t>(rank)] == own);
        ids[static_cast<size_t>(rank)] = own;
        const int got = round_trip(i % 2 == 0 ? ranks.comm(rank) : ranks.breaking_comm(rank),
                                   rank == 0 ? value : 0);
        if (rank == 0) value = got;
      });
    }
    EXPECT_EQ(value, 50 * size);
    EXPECT_EQ(ids[0], std::this_thread::get_id());
  }
}

// Whoever waits for it is stopped, its exception comes out, and of what was on its way nothing is
// there for the next piece of work.
TEST(RankThreads, AFaultOfOneEndsTheWorkOfAllAndNothingElse) {
  RankThreads ranks(3);
  for (int faulty = 0; faulty < 3; ++faulty) {
    for (const bool breaking : {false, true}) {
      const auto body = [&](int rank) {
        Comm& comm = breaking ? ranks.breaking_comm(rank) : ranks.comm(rank);
        const int value = 17;
        for (int to = 0; to < 3; ++to) comm.send_bytes(to, 7, &value, sizeof(value));
        if (rank == faulty) throw std::runtime_error("rank " + std::to_string(rank));
        int never = 0;
        comm.receive_bytes(faulty, 8, &never, sizeof(never));
      };
      std::string told;
      try {
        breaking ? ranks.run_breaking(body) : ranks.run(body);
      } catch (const std::runtime_error& error) {
        told = error.what();
      }
      EXPECT_EQ(told, "rank " + std::to_string(faulty));
      int value = 0;
      const auto next = [&](int rank) {
        const int got =
            round_trip(breaking ? ranks.breaking_comm(rank) : ranks.comm(rank), /*value=*/0);
        if (rank == 0) value = got;
      };
      breaking ? ranks.run_breaking(next) : ranks.run(next);
      EXPECT_EQ(value, 3);
    }
  }
}

// Work is broken into where a rank waits for a message and where it asks: all ranks come, what they
// keep is rank 0's meanwhile, and the messages of the work stay.
TEST(RankThreads, BreaksComeToAllRanks) {
  constexpr int kRounds = 200;
  for (const int size : {1, 2, 3}) {
    RankThreads ranks(size);
    std::vector<int> kept(static_cast<size_t>(size), 0);
    int asked = 0, num_breaks = 0, sum = 0;
    bool inside = false;
    const auto is_due = [&] {
      EXPECT_FALSE(inside);  // a break is not broken into
      return ++asked % 3 == 0;
    };
    const auto take = [&] {
      inside = true;
      ++num_breaks;
      for (int& each : kept) ++each;  // no rank is at work
      for (int i = 0; i < 2; ++i) {
        ranks.run_breaking([&](int rank) {
          EXPECT_EQ(kept[static_cast<size_t>(rank)], num_breaks);
          // It asks there too, as a team's regions do.
          EXPECT_FALSE(ranks.breaks(rank)->is_due());
          const int got = round_trip(ranks.breaking_comm(rank), 100);
          if (rank == 0) sum += got - 100;
        });
      }
      inside = false;
    };
    const Interruption breaks{.is_due = is_due, .run = take};
    int value = 0;
    ranks.run(
        [&](int rank) {
          for (int i = 0; i < kRounds; ++i) {
            const Interruption& own = *ranks.breaks(rank);
            if (own.is_due()) own.run();
            const int got = round_trip(ranks.comm(rank), rank == 0 ? value : 0);
            if (rank == 0) value = got;
          }
        },
        &breaks);
    EXPECT_EQ(value, kRounds * size);
    EXPECT_GE(num_breaks, kRounds / 3);
    EXPECT_EQ(sum, 2 * num_breaks * size);
    ranks.run([&](int rank) { EXPECT_EQ(ranks.breaks(rank), nullptr); });
  }
}

// A rank that has ended its part comes to a break as well, and a fault in a break is that break's.
TEST(RankThreads, AFaultInABreakIsNotTheWorks) {
  RankThreads ranks(2);
  bool is_taken = false;
  std::string told;
  const auto is_due = [&] { return !is_taken; };
  const auto take = [&] {
    is_taken = true;
    try {
      ranks.run_breaking([&](int rank) {
        if (rank == 1) throw std::runtime_error("in a break");
        int never = 0;
        ranks.breaking_comm(0).receive_bytes(1, 3, &never, sizeof(never));
      });
    } catch (const std::runtime_error& error) {
      told = error.what();
    }
  };
  const Interruption breaks{.is_due = is_due, .run = take};
  int got = 0;
  ranks.run(
      [&](int rank) {
        const int value = 5;
        if (rank == 1) return ranks.comm(1).send_bytes(0, 3, &value, sizeof(value));
        ranks.breaks(0)->run();
        ranks.comm(0).receive_bytes(1, 3, &got, sizeof(got));
      },
      &breaks);
  EXPECT_EQ(told, "in a break");
  EXPECT_EQ(got, 5);
}

void run_in_the_midst_of_work(bool in_break) {
  RankThreads ranks(2);
  const auto run = [&] { ranks.run([](int) {}); };
  const auto is_due = [] { return true; };
  const Interruption breaks{.is_due = is_due, .run = run};
  const auto body = [&](int rank) {
    if (rank > 0) return;
    in_break ? ranks.breaks(0)->run() : run();
  };
  ranks.run(body, in_break ? &breaks : nullptr);
}

// It would wait for ranks that are not free: a bug, which is told.
TEST(RankThreadsDeathTest, WorkInTheMidstOfWorkIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_in_the_midst_of_work(false), "is_running");
  EXPECT_DEATH(run_in_the_midst_of_work(true), "is_running");
}

// What breaks in and throws ends the work that it broke into, and nothing else.
TEST(RankThreads, ABreakThatThrowsEnds) {
  for (const int size : {1, 2}) {
    RankThreads ranks(size);
    const auto is_due = [] { return true; };
    const auto take = [] { throw std::runtime_error("in a break"); };
    const Interruption breaks{.is_due = is_due, .run = take};
    const auto body = [&](int rank) {
      if (rank == 0 && ranks.breaks(0) != nullptr) ranks.breaks(0)->run();
      round_trip(ranks.comm(rank), 0);
    };
    EXPECT_THROW(ranks.run(body, &breaks), std::runtime_error);
    ranks.run(body);
    int value = 0;
    ranks.run_breaking([&](int rank) {
      const int got = round_trip(ranks.breaking_comm(rank), 0);
      if (rank == 0) value = got;
    });
    EXPECT_EQ(value, size);
  }
}

}  // namespace
}  // namespace strata
