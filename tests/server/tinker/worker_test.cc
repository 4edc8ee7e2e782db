// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/worker.h"

#include <gmock/gmock.h>

#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace strata::server {
namespace {

using ::testing::ElementsAre;

TEST(Worker, AJobThatThrowsEndsNoOther) {
  Worker worker;
  int done = 0;
  worker.post("a", [&] { ++done; });
  worker.post("a", [] { throw std::runtime_error("a folder went away"); });
  worker.post("b", [] { throw 5; });
  worker.post("", [&] { ++done; });
  worker.stop();
  worker.post("a", [] { throw std::runtime_error("after the end"); });
  EXPECT_EQ(done, 2);
}

TEST(Worker, TenantsTakeTurnsAndATenantsJobsKeepTheirOrder) {
  Worker worker;
  std::vector<std::string> order;
  std::promise<void> open;
  worker.post("x", [&] { open.get_future().wait(); });
  for (const char* name : {"a1", "a2", "a3", "a4"}) {
    worker.post("a", [&, name] { order.emplace_back(name); });
  }
  for (const char* name : {"b1", "b2"}) worker.post("b", [&, name] { order.emplace_back(name); });
  open.set_value();
  worker.stop();
  EXPECT_THAT(order, ElementsAre("a1", "b1", "a2", "b2", "a3", "a4"));
}

TEST(Worker, BetweenPiecesOfAJobOthersHaveTheirTurns) {
  Worker worker;
  std::promise<void> open;
  std::vector<std::string> order;
  worker.post("x", [&] { open.get_future().wait(); });
  int left = 3;
  ASSERT_TRUE(worker.try_post_pieces("a", [&] {
    order.emplace_back("piece");
    return --left > 0;
  }));
  worker.post("a", [&] { order.emplace_back("a"); });
  for (int i = 0; i < 2; ++i) worker.post("b", [&] { order.emplace_back("b"); });
  ASSERT_TRUE(worker.try_post_pieces("c", [&]() -> bool { throw std::runtime_error("c"); }));
  open.set_value();
  worker.stop();
  EXPECT_THAT(order, ElementsAre("piece", "b", "piece", "b", "piece", "a"));
}

TEST(Worker, SoManyOfATenantMayWait) {
  Worker worker({.most_waiting = 2});
  std::promise<void> open, begun;
  int done = 0;
  worker.post("a", [&] {
    begun.set_value();
    open.get_future().wait();
  });
  begun.get_future().wait();
  EXPECT_TRUE(worker.try_post("a", [&] { ++done; }));
  EXPECT_TRUE(worker.try_post("a", [&] { ++done; }));
  EXPECT_FALSE(worker.try_post("a", [&] { ++done; }));
  EXPECT_TRUE(worker.try_post("b", [&] { ++done; }));
  worker.post("a", [&] { ++done; });  // what must be done is never refused
  open.set_value();
  worker.stop();
  EXPECT_EQ(done, 4);
}

TEST(Worker, DropsWhatHasNotBegunWhereThatIsWanted) {
  Worker worker({.drops_at_stop = true});
  std::promise<void> open, begun;
  int done = 0;
  worker.post("a", [&] {
    begun.set_value();
    open.get_future().wait();
    ++done;
  });
  begun.get_future().wait();
  const auto dropped = std::make_shared<int>(0);
  for (int i = 0; i < 10; ++i) worker.post("a", [&, dropped] { ++done; });
  std::thread stops([&] { worker.stop(); });
  while (dropped.use_count() > 1) std::this_thread::yield();
  open.set_value();
  stops.join();
  worker.post("a", [&] { ++done; });
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace strata::server
