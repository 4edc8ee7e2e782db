// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/parse_pool.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace strata::server {
namespace {

using ::testing::ElementsAre;

TEST(ParsePool, TenantsTakeTurnsAndATenantsJobsKeepTheirOrder) {
  std::mutex mutex;
  std::vector<std::string> order;
  std::promise<void> open, done;
  ParsePool pool(1);
  pool.post("x", [&] { open.get_future().wait(); });
  const auto post = [&](const std::string& tenant, const std::string& name) {
    pool.post(tenant, [&, name] {
      const std::lock_guard lock(mutex);
      order.push_back(name);
      if (order.size() == 5) done.set_value();
    });
  };
  for (const char* name : {"a1", "a2", "a3"}) post("a", name);
  for (const char* name : {"b1", "b2"}) post("b", name);
  open.set_value();
  done.get_future().wait();
  EXPECT_THAT(order, ElementsAre("a1", "b1", "a2", "b2", "a3"));
}

TEST(ParsePool, OneTenantHoldsOneThread) {
  std::promise<void> open, other;
  std::atomic<int> running = 0, most = 0;
  ParsePool pool(2);
  for (int i = 0; i < 3; ++i) {
    pool.post("a", [&, i] {
      most = std::max<int>(most, ++running);
      if (i == 0) open.get_future().wait();
      --running;
    });
  }
  pool.post("b", [&] { other.set_value(); });
  other.get_future().wait();  // while the first of "a" runs
  open.set_value();
  std::promise<void> last;
  pool.post("a", [&] { last.set_value(); });
  last.get_future().wait();
  EXPECT_EQ(most, 1);
}

TEST(ParsePool, AfterItsStopJobsAreDropped) {
  ParsePool pool(1);
  pool.stop();
  pool.post("a", [] { FAIL(); });
}

TEST(ParsePool, WhatAJobThrowsEndsNothingElse) {
  std::promise<void> next;
  ParsePool pool(1);
  pool.post("a", [] { throw std::bad_alloc(); });
  pool.post("a", [&] { next.set_value(); });
  next.get_future().wait();
}

}  // namespace
}  // namespace strata::server
