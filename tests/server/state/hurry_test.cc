// SPDX-License-Identifier: Apache-2.0
#include "server/state/hurry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "server/state/store_lists.h"
#include "tests/server/state/test_postgres.h"

namespace strata::server {
namespace {

using strata::testing::TestPostgres;

TEST(Hurry, EndsTheWaitForADatabaseThatHangs) {
  TestPostgres* postgres = TestPostgres::shared();
  if (postgres == nullptr) GTEST_SKIP() << "postgresql-15 is not installed";
  postgres->reset();
  const auto hurried = open_postgres_reader(postgres->url());
  const auto other = open_postgres_reader(postgres->url());
  postgres->freeze(true);
  std::atomic<int> num_ended = 0;
  int first = 0, second = 0;
  std::thread one([&] {
    EXPECT_THROW(hurried->run("SELECT 1", {}), Error);
    first = ++num_ended;
  });
  std::thread two([&] {
    EXPECT_THROW(other->run("SELECT 1", {}), Error);
    second = ++num_ended;
  });
  hurry(*hurried);
  one.join();
  two.join();
  postgres->freeze(false);
  EXPECT_LT(first, second);
  EXPECT_THROW(hurried->run("SELECT 1", {}), Error);  // it is not looked for
}

TEST(Hurry, IsNothingForAFile) {
  const auto sql = open_sqlite(":memory:");
  hurry(*sql);
  EXPECT_NO_THROW(sql->run("SELECT 1", {}));
}

}  // namespace
}  // namespace strata::server
