// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http/read_request.h"

namespace strata::server {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

TEST(Turns, OneAfterTheOtherInTheOrderAskedFor) {
  Turns turns;
  asio::io_context io{1};
  std::string told;
  int active = 0;
  const auto work = [&](char name, int pieces) -> asio::awaitable<void> {
    for (int i = 0; i < pieces; ++i) {
      Turns::Turn turn(turns, io, "t");
      co_await turn.await_turn();
      EXPECT_EQ(++active, 1);
      told += name;
      --active;
    }
  };
  asio::co_spawn(io, work('a', 3), asio::detached);
  asio::co_spawn(io, work('b', 1), asio::detached);
  asio::co_spawn(io, work('c', 2), asio::detached);
  io.run();
  EXPECT_EQ(told, "abcaca");
}

// Many of one tenant delay each other; another one comes after one of them.
TEST(Turns, TenantsTakeTurns) {
  Turns turns;
  asio::io_context io{1};
  std::string told;
  const auto work = [&](char name, std::string tenant, int pieces) -> asio::awaitable<void> {
    for (int i = 0; i < pieces; ++i) {
      Turns::Turn turn(turns, io, tenant);
      co_await turn.await_turn();
      told += name;
    }
  };
  for (const char name : {'1', '2', '3', '4', '5', '6'}) {
    asio::co_spawn(io, work(name, "many", 2), asio::detached);
  }
  asio::co_spawn(io, work('x', "one", 3), asio::detached);
  io.run();
  EXPECT_EQ(told, "1x2x3x456123456");
}

// Others run between two pieces, also when those take long and are always asked for.
TEST(Turns, RestsForAsLongAsAPieceTook) {
  Turns turns;
  asio::io_context io{1};
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> begun;
  const auto work = [&]() -> asio::awaitable<void> {
    for (int i = 0; i < 3; ++i) {
      Turns::Turn turn(turns, io, "t");
      co_await turn.await_turn();
      begun.push_back(Clock::now());
      std::this_thread::sleep_for(milliseconds(20));
    }
  };
  asio::co_spawn(io, work(), asio::detached);
  asio::co_spawn(io, work(), asio::detached);
  io.run();
  ASSERT_EQ(begun.size(), 6u);
  for (size_t i = 1; i < begun.size(); ++i) EXPECT_GE(begun[i] - begun[i - 1], milliseconds(40));
}

TEST(Turns, WhoGoesGivesUpItsPlace) {
  Turns turns;
  std::string told;
  {
    asio::io_context io{1};
    auto first = std::make_unique<Turns::Turn>(turns, io, "t");
    auto second = std::make_unique<Turns::Turn>(turns, io, "t");
    const auto work = [&](char name) -> asio::awaitable<void> {
      Turns::Turn turn(turns, io, "t");
      co_await turn.await_turn();
      told += name;
    };
    asio::co_spawn(io, work('a'), asio::detached);
    asio::co_spawn(io, work('b'), asio::detached);
    io.poll();
    EXPECT_EQ(told, "");
    second.reset();
    io.poll();
    EXPECT_EQ(told, "");
    first.reset();
    io.restart();
    io.run();
    EXPECT_EQ(told, "ab");
    first = std::make_unique<Turns::Turn>(turns, io, "t");
    io.restart();
    asio::co_spawn(io, work('c'), asio::detached);
    io.poll();
  }  // with a coroutine that still waits
  EXPECT_EQ(told, "ab");
}

}  // namespace
}  // namespace strata::server
