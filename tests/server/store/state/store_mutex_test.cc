// SPDX-License-Identifier: Apache-2.0
// A store whose database is slow or hangs: what the thread that serves everybody waits, in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "server/store/state/store.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

using strata::testing::TempDir;

// Shared with the test.
struct Delays {
  std::atomic<double> seconds = 0;  // of each statement
  std::atomic<double> way = 0;      // of them there and back
  std::atomic<double> still = 0;    // of this process, in the next one, whatever its deadline
  std::atomic<int> cut = 0;         // statements that were cut off at their deadline
  std::atomic<bool> lost = false;
};

class SlowSql final : public Sql {
 public:
  SlowSql(std::unique_ptr<Sql> sql, std::shared_ptr<Delays> delays)
      : sql_(std::move(sql)), delays_(std::move(delays)) {}

  SqlResult run(std::string_view statement, std::span<const SqlValue> parameters) override {
    usual_ += delays_->way;
    const double left = deadline_ - now_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(delays_->still.exchange(0)));
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::clamp(left, 0.0, delays_->seconds.load())));
    if (left < delays_->seconds) {
      ++delays_->cut;
      throw StoreError("cut off");
    }
    return sql_->run(statement, parameters);
  }
  void begin(Durability durability) override { sql_->begin(durability); }
  void commit() override { sql_->commit(); }
  void sync() override { sql_->sync(); }
  void rollback() noexcept override { sql_->rollback(); }
  [[nodiscard]] bool may_hang() const override { return true; }
  [[nodiscard]] bool is_away() const override { return delays_->lost; }
  [[nodiscard]] double usual_seconds() const override { return usual_; }
  void set_deadline(double when) override { deadline_ = when; }

 private:
  std::unique_ptr<Sql> sql_;
  std::shared_ptr<Delays> delays_;
  double usual_ = 0;
  double deadline_ = kNoDeadline;
};

struct StoreMutexTest : ::testing::Test {
  // How long `count` calls take, and how many fail.
  double calls(int count) {
    const double begin = now_seconds();
    for (int i = 0; i < count; ++i) {
      try {
        EXPECT_FALSE(store.find_session("s").has_value());
      } catch (const Error& error) {
        EXPECT_EQ(error.code, ErrorCode::kIo);
        ++failed;
      }
    }
    return now_seconds() - begin;
  }

  TempDir dir;
  std::shared_ptr<Delays> delays = std::make_shared<Delays>();
  StateStore store{std::make_unique<SlowSql>(open_sqlite(dir.file("strata.db")), delays), 1000};
  int failed = 0;
};

TEST_F(StoreMutexTest, AStatementThatHangsIsCutOff) {
  store.hurry_this_thread();
  delays->seconds = 30;
  EXPECT_LT(calls(1000), 0.8);
  EXPECT_EQ(failed, 1000);
  delays->seconds = 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  calls(10);
  EXPECT_EQ(failed, 1000);
}

// As of a process that is stopped for seconds, or moved.
TEST_F(StoreMutexTest, AStandstillIsNoWait) {
  store.hurry_this_thread();
  delays->still = 3;
  calls(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  failed = 0;
  calls(10);
  EXPECT_EQ(failed, 0);
}

// Many that are slow and not cut off: what stands behind them waits no longer either.
TEST_F(StoreMutexTest, ManySlowStatementsTakeNoLongerTogether) {
  store.hurry_this_thread();
  delays->seconds = 0.05;
  EXPECT_LT(calls(300), 0.95);
  EXPECT_GT(failed, 280);
  EXPECT_EQ(delays->cut, 0);
}

// However many ask: a database that is well is not slow.
TEST_F(StoreMutexTest, ManyStatementsOfADatabaseThatIsWellAreNoWait) {
  store.hurry_this_thread();
  delays->seconds = 0.001;
  calls(1500);
  EXPECT_EQ(failed, 0);
}

// Nor is one that is far away, unless it takes longer than the way.
TEST_F(StoreMutexTest, TheWayToADatabaseIsNoWait) {
  store.hurry_this_thread();
  delays->seconds = delays->way = 0.03;
  calls(40);
  EXPECT_EQ(failed, 0);
  delays->seconds = 0.3;
  calls(40);
  EXPECT_GT(failed, 30);
}

TEST_F(StoreMutexTest, OthersThatWaitForTheDatabaseHoldItUpForAMomentAlone) {
  store.hurry_this_thread();
  delays->seconds = 3;
  std::thread patient([&] { EXPECT_FALSE(store.find_session("s").has_value()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(calls(1000), 0.8);
  EXPECT_EQ(failed, 1000);
  patient.join();
  EXPECT_EQ(delays->cut, 0);
}

// A sweep asks for the store again as soon as it has given it back.
TEST_F(StoreMutexTest, TheThreadThatServesEverybodyComesFirst) {
  delays->seconds = 0.002;
  std::atomic<int> others = 0;
  std::atomic<bool> is_over = false;
  std::thread sweeping([&] {
    for (; !is_over; ++others) EXPECT_FALSE(store.find_session("s").has_value());
  });
  while (others < 3) std::this_thread::yield();
  store.hurry_this_thread();
  int most = 0;
  for (int i = 0; i < 50; ++i) {
    const int before = others;
    calls(1);
    most = std::max(most, others - before);
  }
  is_over = true;
  sweeping.join();
  EXPECT_LE(most, 2);
  EXPECT_EQ(failed, 0);
}

// A pass touches its run: training goes on.
TEST_F(StoreMutexTest, ATouchWaitsForNoDatabase) {
  store.hurry_this_thread();
  delays->seconds = 1;
  std::thread patient([&] { EXPECT_FALSE(store.find_session("s").has_value()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  delays->lost = true;
  const double begin = now_seconds();
  EXPECT_NO_THROW(store.touch_run("r", 1000));
  EXPECT_LT(now_seconds() - begin, 0.2);
  patient.join();
}

TEST_F(StoreMutexTest, WhatIsLostIsNotLookedFor) {
  store.hurry_this_thread();
  delays->lost = true;
  delays->seconds = 1;
  EXPECT_LT(calls(100), 0.1);
  EXPECT_EQ(failed, 100);
  EXPECT_EQ(delays->cut, 0);
}

TEST_F(StoreMutexTest, AnotherThreadWaitsAsLongAsItTakes) {
  std::thread io([&] { store.hurry_this_thread(); });
  io.join();
  delays->seconds = 0.7;
  calls(1);
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace strata::server
