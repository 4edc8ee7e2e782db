// SPDX-License-Identifier: Apache-2.0
// What the databases say of a statement that fails, and how a server's end ends waits for them.
#include "server/store/state/sql.h"

#include <atomic>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "server/store/state/store_lists.h"
#include "tests/server/store/state/store_fixture.h"
#include "tests/server/store/state/test_postgres.h"

namespace strata::server {
namespace {

class SqlTest : public Store {};

INSTANTIATE_TEST_SUITE_P(Databases, SqlTest, ::testing::Values("sqlite", "postgresql"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SqlTest, AKeyThatIsThereIsAFaultOfItsOwn) {
  store_.reset();
  const std::unique_ptr<Sql> sql = connect();
  const auto add = [&] { sql->run("INSERT INTO meta (name, value) VALUES ('boot', 1)", {}); };
  EXPECT_THROW(add(), NotUnique);
  sql->begin(Durability::kRelaxed);
  EXPECT_THROW(add(), NotUnique);
  sql->rollback();
  EXPECT_EQ(sql->run("SELECT value FROM meta WHERE name = 'boot'", {}).rows.size(), 1u);
}

// A database far away is asked as seldom as may be.
TEST_P(SqlTest, ATransactionIsOpenedOnTheWayOfItsFirstStatement) {
  store_.reset();
  const std::unique_ptr<Sql> sql = connect();
  auto taken = [&, before = 0.0]() mutable {
    const double now = sql->usual_seconds();
    return now - std::exchange(before, now);
  };
  taken();
  sql->run("SELECT 1", {});
  const double way = taken();
  EXPECT_EQ(way > 0, sql->may_hang());
  for (const Durability durability : {Durability::kRelaxed, Durability::kFull}) {
    sql->begin(durability);
    EXPECT_EQ(taken(), 0);
    EXPECT_EQ(sql->run("UPDATE meta SET value = 7 WHERE name = 'boot'", {}).changed, 1);
    sql->rollback();
    taken();
    sql->begin(durability);
    EXPECT_EQ(sql->run("SELECT value FROM meta WHERE name = 'boot'", {}).rows[0][0],
              SqlValue(int64_t{1}));
    EXPECT_EQ(sql->run("UPDATE meta SET name = 'boot' WHERE name = 'boot'", {}).changed, 1);
    sql->commit();
    EXPECT_NEAR(taken(), 3 * way, 1e-9);
  }
  sql->begin(Durability::kRelaxed);
  sql->commit();  // of nothing
  sql->begin(Durability::kRelaxed);
  sql->rollback();
  EXPECT_EQ(taken(), 0);
}

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
  hurried->hurry();
  one.join();
  two.join();
  postgres->freeze(false);
  EXPECT_LT(first, second);
  EXPECT_THROW(hurried->run("SELECT 1", {}), Error);  // it is not looked for
}

// The two seconds are a statement's, and not those of each piece of its answer.
TEST(Hurry, EndsAStatementThatAnswersInPieces) {
  TestPostgres* postgres = TestPostgres::shared();
  if (postgres == nullptr) GTEST_SKIP() << "postgresql-15 is not installed";
  postgres->reset();
  const auto sql = open_postgres_reader(postgres->url());
  const double begin = now_seconds();
  sql->hurry();
  EXPECT_THROW(
      sql->run("SELECT pg_sleep(0.3), repeat('x', 10000) FROM generate_series(1, 100)", {}), Error);
  EXPECT_LT(now_seconds() - begin, 3.5);
}

// A migration reads whole tables.
TEST(Unhurried, StatementsOfATransactionMayTakeAsLongAsTheyNeed) {
  TestPostgres* const postgres = TestPostgres::shared();
  if (postgres == nullptr) GTEST_SKIP() << "postgresql-15 is not installed: tools/install.sh test";
  postgres->reset();
  const auto sql = open_postgres(postgres->url());
  const auto limit = [&] {
    return std::get<std::string>(sql->run("SHOW statement_timeout", {}).rows[0][0]);
  };
  {
    Transaction transaction(*sql, Durability::kUnhurried);
    EXPECT_EQ(limit(), "0");
    EXPECT_NO_THROW(sql->run("SELECT 1 FROM pg_sleep(5.5)", {}));
  }
  EXPECT_EQ(limit(), "5s");
}

// A connection that is lost before a transaction's first statement is opened again outside of it:
// what it was set to stays when the transaction is taken back, and none stays open behind it.
TEST(LostConnection, IsOpenedAgainOutsideTheTransaction) {
  TestPostgres* const postgres = TestPostgres::shared();
  if (postgres == nullptr) GTEST_SKIP() << "postgresql-15 is not installed: tools/install.sh test";
  postgres->reset();
  auto sql = open_postgres(postgres->url());
  sql->run("CREATE TABLE t (a BIGINT PRIMARY KEY)", {});
  sql->run("INSERT INTO t (a) VALUES (1)", {});
  sql->begin(Durability::kRelaxed);
  postgres->drop_connections();
  EXPECT_THROW(sql->run("INSERT INTO t (a) VALUES (1)", {}), NotUnique);
  sql->rollback();
  EXPECT_EQ(sql->run("SHOW statement_timeout", {}).rows[0][0], SqlValue("5s"));

  sql.reset();
  sql = open_postgres(postgres->url());  // which has not looked for it yet
  sql->begin(Durability::kRelaxed);
  postgres->drop_connections();
  auto other = open_postgres(postgres->url());  // has the server's lock now
  EXPECT_THROW(sql->run("INSERT INTO t (a) VALUES (2)", {}), StoreError);
  sql->rollback();
  other.reset();
  const auto add = [&] {
    try {
      return sql->run("INSERT INTO t (a) VALUES (3)", {}).changed == 1;
    } catch (const StoreError&) {
      return false;  // it looks for the database from time to time
    }
  };
  for (int i = 0; i < 1000 && !add(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto reader = open_postgres_reader(postgres->url());
  EXPECT_EQ(reader->run("SELECT a FROM t WHERE a > 1", {}).rows,
            (std::vector<SqlRow>{{SqlValue(int64_t{3})}}));
}

TEST(Hurry, IsNothingForAFile) {
  const auto sql = open_sqlite(":memory:");
  sql->hurry();
  EXPECT_NO_THROW(sql->run("SELECT 1", {}));
}

}  // namespace
}  // namespace strata::server
