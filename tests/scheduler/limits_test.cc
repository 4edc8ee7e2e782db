// SPDX-License-Identifier: Apache-2.0
// The scheduler under too much of something: queues, files, pages, a standstill, an end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "scheduler/scheduler.h"
#include "tests/base/accounts.h"
#include "tests/scheduler/house.h"

namespace strata::scheduler {
namespace {

using strata::testing::accounts_with;
using ::testing::ElementsAre;

// Chunk 1 comes last; if the queue is full of what waits for it, it must get in.
TEST(SchedulerLimits, AFullQueueLetsInWhatEverythingWaitsFor) {
  const Accounts accounts = accounts_with(Use::kQueue, 100'000);
  const SharedLimit& bytes = accounts.of(Use::kQueue);
  House house({.accounts = accounts});
  house.submit(create("m"));
  house.run();
  int64_t seq = 2;
  while (house.submit(op("m", seq, rows({4000}))) == api::Admission::kAccepted && seq < 100) ++seq;
  EXPECT_EQ(house.submit(op("m", seq, rows({4000}))), api::Admission::kFull);
  EXPECT_LE(bytes.used(), 75'000);
  EXPECT_EQ(house.submit(op("m", seq + 1, api::SaveState{})),
            api::Admission::kAccepted);  // put off by nothing but saves
  EXPECT_EQ(house.submit(op("m", 3, rows({4000}))), api::Admission::kGivenUp);
  EXPECT_EQ(house.submit(op("m", 1, rows({5000}))), api::Admission::kAccepted);
  EXPECT_LE(bytes.used(), 100'000);
  house.run();
  EXPECT_EQ(house.submit(op("m", seq, rows({4000}))), api::Admission::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
  EXPECT_EQ(bytes.used(), 0);
}

// What is refused for its own size need not be sent again.
TEST(SchedulerLimits, ACommandBeyondAQuarterOfAllIsTooLarge) {
  House house({.accounts = accounts_with(Use::kQueue, 100'000)});
  house.submit(create("m"));
  house.run();
  EXPECT_EQ(house.submit(op("m", 1, rows({7000}))), api::Admission::kTooLarge);
  EXPECT_EQ(house.submit(sample("s", 7000, 1)), api::Admission::kTooLarge);
  EXPECT_EQ(house.submit(op("m", 1, rows({5000}))), api::Admission::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

// Sixteen that each want less than one alone may have want more than there is: all get their own
// part, and the sum holds.
TEST(SchedulerLimits, AllTenantsTogetherHoldNoMoreThanTheLimit) {
  constexpr int kTenants = 16;
  const Accounts accounts = accounts_with(Use::kQueue, 1'000'000, kTenants);
  const SharedLimit& bytes = accounts.of(Use::kQueue);
  House house({.accounts = accounts});
  std::vector<std::string> names;
  for (int i = 0; i < kTenants; ++i) names.push_back("t" + std::to_string(i));
  for (const std::string& name : names) house.submit(create(name, name));
  house.run();
  int refused = 0, admitted = 0;
  for (const std::string& name : names) {
    bool is_first = true;
    for (int64_t seq = 1; seq <= 10; ++seq) {
      const api::Admission got = house.submit(op(name, seq, rows({4000}), name));
      EXPECT_TRUE(got == api::Admission::kAccepted || !is_first) << name;
      is_first = false;
      ++(got == api::Admission::kAccepted ? admitted : refused);
    }
    EXPECT_LE(bytes.used(), bytes.limit());
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(admitted, 2 * kTenants);
  house.run();
  EXPECT_EQ(bytes.used(), 0);
}

// What waits behind a missing number never drains by itself: the number must get in.
TEST(SchedulerLimits, WhatWaitsForAMissingNumberLeavesRoomForIt) {
  const Accounts accounts = accounts_with(Use::kQueue, 200'000, /*num_tenants=*/2);
  const SharedLimit& bytes = accounts.of(Use::kQueue);
  House house({.accounts = accounts});
  for (const char* name : {"a", "b"}) house.submit(create(name, name));
  house.run();
  for (int64_t seq = 2; seq <= 40; ++seq) {
    for (const char* name : {"a", "b"}) {
      house.submit(op(name, seq, rows({4000}), name));
      house.submit(op(name, 50 + seq, api::SaveState{}, name));
    }
  }
  EXPECT_GT(bytes.used(), bytes.limit() / 2);
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(house.submit(op(name, 1, rows({5000}), name)), api::Admission::kAccepted) << name;
    EXPECT_LE(bytes.used(), bytes.limit());
    house.run();
  }
}

// A command counts as long as anybody has it: in the engine too.
TEST(SchedulerLimits, BytesCountUntilTheTurnIsOver) {
  const Accounts accounts = accounts_with(Use::kQueue, 100'000);
  const SharedLimit& bytes = accounts.of(Use::kQueue);
  House house({.accounts = accounts});
  house.submit(sample("s", 100, 2));
  const api::Capacity capacity = house.engine.capacity();
  {
    const api::Work work = house.scheduler.next({&capacity, 1}, house.now);
    EXPECT_GT(bytes.used(), 800);
    house.post(house.scheduler.complete(house.engine.run(work), house.now));
  }
  house.run();
  EXPECT_EQ(bytes.used(), 0);
}

// A client that sends in order has nothing missing: its bytes stop it like anybody's.
TEST(SchedulerLimits, AFullQueueStopsAClientThatSendsInOrder) {
  House house({.accounts = accounts_with(Use::kQueue, 40'000)});
  house.submit(create("m"));
  house.run();
  int64_t seq = 1;
  while (house.submit(op("m", seq, rows({2000}))) == api::Admission::kAccepted && seq < 100) ++seq;
  EXPECT_LE(seq, 5);
  EXPECT_LE(house.scheduler.stats().queued_bytes, 40'000);
  house.run();
  EXPECT_EQ(house.submit(op("m", seq, rows({2000}))), api::Admission::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

TEST(SchedulerLimits, OperationsOfAModelAreCounted) {
  House house({.max_queued_operations = 100});
  house.submit(create("m"));
  for (int64_t seq = 2; seq <= 101; ++seq)
    EXPECT_EQ(house.submit(op("m", seq, api::SaveState{})), api::Admission::kAccepted);
  EXPECT_EQ(house.submit(op("m", 102, api::SaveState{})), api::Admission::kFull);
  EXPECT_EQ(house.submit(op("m", 50, api::SaveState{})), api::Admission::kGivenUp);
  EXPECT_EQ(house.submit(op("m", 1, api::OptimStep{})),
            api::Admission::kAccepted);  // all wait for it
  house.run();
  EXPECT_EQ(house.submit(op("m", 102, api::SaveState{})), api::Admission::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

// A walk for each of them took minutes under the lock that everything else needs.
TEST(SchedulerLimits, EndingALongQueueIsOnePass) {
  House house({.max_queued_operations = 1'000'000});
  house.submit(create("m"));
  for (int64_t seq = 1; seq <= 200'000; ++seq) house.submit(op("m", seq, api::OptimStep{}));
  const auto begin = std::chrono::steady_clock::now();
  house.scheduler.end_session({"s"}, "over", 0.0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  house.run();
  EXPECT_EQ(house.posted["m-200000"].size(), 1u);
}

TEST(SchedulerLimits, AFullSampleQueueIsTold) {
  House house({.accounts = accounts_with(Use::kSample, 2)});
  EXPECT_EQ(house.submit(sample("a", 3, 2)), api::Admission::kAccepted);
  EXPECT_EQ(house.submit(sample("b", 3, 2)), api::Admission::kAccepted);
  EXPECT_EQ(house.submit(sample("c", 3, 2)), api::Admission::kFull);
  house.turn();
  EXPECT_EQ(house.submit(sample("c", 3, 2)), api::Admission::kAccepted);
  house.run();
  EXPECT_TRUE(house.scheduler.idle());
}

// Saves and loads in line, thousands perhaps, are one a turn, shared by tenant.
TEST(SchedulerLimits, FileWorkHoldsUpNobody) {
  House house;
  for (const char* model : {"a", "b"}) house.submit(create(model, "x"));
  house.submit(create("c", "y"));
  house.run();
  for (const char* model : {"a", "b"}) {
    for (int64_t seq = 1; seq <= 50; ++seq)
      house.submit(op(model, seq, api::LoadState{"dir", false}, "x"));
  }
  house.submit(op("c", 1, api::SaveState{}, "y"));
  house.submit(op("c", 2, rows({4}), "y"));
  house.turn();
  const auto num_loads = [&] {
    return house.engine.log["a"].size() + house.engine.log["b"].size() - 2;
  };
  EXPECT_LE(num_loads(), 1u);
  house.turn();
  EXPECT_LE(num_loads(), 1u);
  EXPECT_EQ(house.posted["c-1"].size(), 1u);
  EXPECT_EQ(house.posted["c-2"].size(), 1u);
  house.run();
  EXPECT_EQ(num_loads(), 100u);
}

TEST(SchedulerLimits, FilesAndSamplingShareTime) {
  House house;
  house.engine.file_cost = 5.0;
  house.engine.pages = 1000;
  house.submit(create("m"));
  house.run();
  house.submit(sample("s", 4, 1000));
  for (int64_t seq = 1; seq <= 100; ++seq) house.submit(op("m", seq, api::SaveState{}));
  for (int i = 0; i < 60; ++i) house.turn();
  const api::Capacity spent = house.engine.capacity();
  EXPECT_NEAR(spent.train_seconds, spent.sample_seconds, 6.0);
}

TEST(SchedulerLimits, AShutdownCountsWhatItDrops) {
  House house;
  house.submit(create("m"));
  house.run();
  house.submit(op("m", 1, api::SaveState{}));
  house.scheduler.begin_shutdown(0.0);
  house.run();
  EXPECT_EQ(house.scheduler.num_dropped(), 0u);
  EXPECT_EQ(house.failure("m-1"), nullptr);
  House other;
  other.submit(create("m"));
  other.run();
  other.submit(op("m", 1, rows({4})));
  other.submit(sample("s", 4, 4));
  other.scheduler.begin_shutdown(0.0);
  other.run();
  EXPECT_EQ(other.scheduler.num_dropped(), 2u);
}

// A load's answer comes when its files are read: its model waits for it, and so does the model's
// end.
TEST(SchedulerLimits, AModelWaitsForItsLoadAndNobodyElseDoes) {
  House house;
  for (const char* model : {"m", "n"}) house.submit(create(model, "t", model));
  house.run();
  house.engine.holds_loads = true;
  house.submit(op("m", 1, api::LoadState{"dir", false}, "t", "m"));
  house.submit(op("m", 2, rows({4}), "t", "m"));
  house.submit(op("m", 3, api::SaveState{}, "t", "m"));
  house.submit(op("n", 1, rows({4}), "t", "n"));
  house.run();
  EXPECT_EQ(house.engine.log["m"], (std::vector<std::string>{"create-m", "m-1"}));
  EXPECT_EQ(house.posted["n-1"].size(), 1u);
  house.scheduler.end_session({"m"}, "ended", house.now);
  house.run();
  EXPECT_EQ(house.engine.log["m"].size(), 2u);  // no unload under the read
  house.post(house.scheduler.complete(house.engine.finish_loads(), house.now));
  house.run();
  EXPECT_EQ(house.posted["m-1"].size(), 1u);
  EXPECT_NE(house.failure("m-2"), nullptr);
  EXPECT_EQ(house.engine.log["m"], (std::vector<std::string>{"create-m", "m-1", "m-3", ""}));
  EXPECT_TRUE(house.scheduler.idle());
}

// While copies of adapters wait for the disk, no further one is made; loads go on.
TEST(SchedulerLimits, SavesWaitForTheDisk) {
  House house;
  house.submit(create("m"));
  house.submit(create("n"));
  house.run();
  house.engine.saves = 0;
  house.submit(op("m", 1, api::SaveState{}));
  house.submit(op("n", 1, api::LoadState{"dir", false}));
  house.run();
  EXPECT_EQ(house.posted["m-1"].size(), 0u);
  EXPECT_EQ(house.posted["n-1"].size(), 1u);
  house.engine.saves = 1;
  house.run();
  EXPECT_EQ(house.posted["m-1"].size(), 1u);
}

// A request that has begun holds its prompt's pages between its rows; another that would fit an
// empty cache must not be let in beside it.
TEST(SchedulerLimits, RequestsThatHaveBegunNeverStarveEachOtherOfPages) {
  for (const size_t prompt : {8, 16, 20}) {
    House house;
    house.engine.pages = 8;
    house.engine.max_rows = 1;  // one row at a time: requests are half handed out in between
    for (const char* tenant : {"x", "y", "z"}) house.submit(sample(tenant, prompt, 12, 3, tenant));
    house.submit(sample("whole", 4, 28, 1, "w"));
    house.run();
    for (const char* request : {"x", "y", "z", "whole"}) {
      ASSERT_EQ(house.posted[request].size(), 1u) << request << " " << prompt;
      const api::Failure* failure = house.failure(request);
      if (failure != nullptr) {
        EXPECT_EQ(failure->message, "too large") << prompt;
      }
    }
    EXPECT_TRUE(house.scheduler.idle());
  }
}

// While the process stood still, the missing number could not arrive.
TEST(SchedulerLimits, AStandstillIsNoWaitForAGap) {
  House house({.gap_timeout = 10.0});
  house.submit(create("m"));
  house.submit(op("m", 2, api::OptimStep{}));
  house.run();
  house.now = 1000.0;
  house.scheduler.give_up_overdue_gaps(house.now, 999.0);
  house.run();
  EXPECT_EQ(house.scheduler.stats().held_training, 1);
  house.submit(op("m", 1, api::OptimStep{}));
  house.run();
  EXPECT_THAT(house.engine.log["m"], ElementsAre("create-m", "m-1", "m-2"));
}

TEST(Scheduler, ATenantThatFillsTheSampleQueueLeavesOthersTheirPart) {
  House house({.accounts = accounts_with(Use::kSample, 8, /*num_tenants=*/2)});
  const auto of = [](const std::string& tenant, int i) {
    api::Command command = sample(tenant + std::to_string(i), 3, 2);
    command.tenant = {tenant};
    return command;
  };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(house.submit(of("greedy", i)), api::Admission::kAccepted);
  EXPECT_EQ(house.submit(of("greedy", 6)), api::Admission::kFull);
  EXPECT_EQ(house.submit(of("other", 0)), api::Admission::kAccepted);
  EXPECT_EQ(house.submit(of("other", 1)), api::Admission::kAccepted);
  EXPECT_EQ(house.scheduler.stats().queued_samples, 8);
  house.run();
  EXPECT_EQ(house.scheduler.stats().queued_samples, 0);
}

}  // namespace
}  // namespace strata::scheduler
