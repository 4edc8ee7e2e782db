// SPDX-License-Identifier: Apache-2.0
#include "server/reloads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/clock.h"

namespace strata::server {
namespace {

void wait_for(const std::atomic<int>& count, int wanted) {
  const double end = now_seconds() + 5;
  while (count < wanted && now_seconds() < end) std::this_thread::yield();
  EXPECT_EQ(count, wanted);
}

TEST(Reloads, UsesWhatWasReadOnceForEachTime) {
  std::atomic<int> read = 0, used = 0;
  Reloads reloads([&] {
    ++read;
    return [&] { ++used; };
  });
  reloads.ask();
  wait_for(used, 1);
  reloads.ask();
  wait_for(used, 2);
  EXPECT_EQ(read, 2);
}

// A manager is told that a reload has been done when it has.
TEST(Reloads, WhatFollowsComesBehindTheUse) {
  std::atomic<int> used = 0, followed = 0;
  Reloads reloads([&] { return [&] { ++used; }; });
  reloads.ask([&] {
    EXPECT_EQ(used, 1);
    ++followed;
  });
  wait_for(followed, 1);
}

// A disk that hangs: who asks, and who ends it all, goes on, and what comes too late is not used.
TEST(Reloads, NobodyWaitsForAReadThatHangs) {
  auto disk = std::make_shared<std::promise<void>>();
  auto reading = std::make_shared<std::atomic<int>>(0);
  auto used = std::make_shared<std::atomic<int>>(0);
  auto released = std::make_shared<std::atomic<int>>(0);
  const std::shared_future<void> answers = disk->get_future().share();
  const double begin = now_seconds();
  {
    Reloads reloads([=] {
      ++*reading;
      answers.wait();
      ++*released;
      return [used] { ++*used; };
    });
    for (int i = 0; i < 100; ++i) reloads.ask();
    wait_for(*reading, 1);
  }
  EXPECT_LT(now_seconds() - begin, 2);
  disk->set_value();
  wait_for(*released, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(*used, 0);
  EXPECT_EQ(*reading, 1);
}

}  // namespace
}  // namespace strata::server
