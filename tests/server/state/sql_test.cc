// SPDX-License-Identifier: Apache-2.0
// What the databases say of a statement that fails.
#include "server/state/sql.h"

#include "tests/server/state/store_fixture.h"

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

}  // namespace
}  // namespace strata::server
