// SPDX-License-Identifier: Apache-2.0
// Lists over SQLite and over a real PostgreSQL.
#include "server/store/state/store_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/temp_dir.h"
#include "tests/server/store/state/test_postgres.h"

namespace strata::server {
namespace {

using strata::testing::TempDir;
using strata::testing::TestPostgres;
using ::testing::ElementsAre;

class StoreListsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!is_sqlite()) {
      if (TestPostgres::shared() == nullptr)
        GTEST_SKIP() << "postgresql-15 is not installed: tools/install.sh test";
      TestPostgres::shared()->reset();
    }
    std::unique_ptr<Sql> sql = is_sqlite() ? open_sqlite(dir_.file("strata.db"))
                                           : open_postgres(TestPostgres::shared()->url());
    sql_ = sql.get();
    store_ = std::make_unique<StateStore>(std::move(sql), 1000);
    lists_ = std::make_unique<StoreLists>(reader());
  }
  [[nodiscard]] bool is_sqlite() const { return std::string_view(GetParam()) == "sqlite"; }
  std::unique_ptr<Sql> reader() {
    return is_sqlite() ? open_sqlite_reader(dir_.file("strata.db"))
                       : open_postgres_reader(TestPostgres::shared()->url());
  }
  RunRow run(const std::string& id) {
    RunRow row;
    row.id = id;
    row.tenant = "alice";
    row.session_id = "s";
    row.model_seq = ++count_;
    row.base_model = "base";
    row.user_metadata = "{}";
    EXPECT_TRUE(store_->add_run(row));
    return row;
  }
  void checkpoint(const std::string& run, const std::string& name,
                  CheckpointKind kind = CheckpointKind::kWeights,
                  std::optional<double> expires_at = std::nullopt) {
    CheckpointRow row;
    row.id = "id" + name;
    row.run_id = run;
    row.tenant = "alice";
    row.kind = kind;
    row.name = name;
    row.expires_at = expires_at;
    row.base_model = "base";
    store_->upsert_checkpoint(row);
  }

  TempDir dir_;
  std::unique_ptr<StateStore> store_;
  Sql* sql_ = nullptr;  // the store's
  std::unique_ptr<StoreLists> lists_;
  int64_t count_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Databases, StoreListsTest, ::testing::Values("sqlite", "postgresql"),
                         [](const auto& info) { return std::string(info.param); });

template <typename Row>
std::vector<std::string> ids(const std::vector<Listed<Row>>& rows) {
  std::vector<std::string> out;
  for (const Listed<Row>& listed : rows) out.push_back(listed.row.id);
  return out;
}

TEST_P(StoreListsTest, GoesOnBelowANumber) {
  for (const char* id : {"a", "b", "c", "d"}) run(id);
  const auto part = lists_->list_runs("alice", "", {.limit = 2, .offset = 1});
  EXPECT_THAT(ids(part), ElementsAre("c", "b"));
  EXPECT_EQ(part[0].row.lora.rank, RunRow().lora.rank);
  EXPECT_THAT(ids(lists_->list_runs("alice", "default", {.limit = 2, .below = part[1].number})),
              ElementsAre("a"));
  EXPECT_EQ(lists_->count_runs("alice", ""), 4);
  EXPECT_EQ(lists_->count_runs("alice", "p"), 0);
  EXPECT_EQ(lists_->count_runs("bob", ""), 0);
  EXPECT_THAT(lists_->list_runs_of("s"), ElementsAre("a", "b", "c", "d"));
}

TEST_P(StoreListsTest, ListsWhatIsAlive) {
  const RunRow a = run("a");
  const RunRow b = run("b");
  checkpoint("a", "1", CheckpointKind::kWeights, 1200.0);
  checkpoint("b", "2");
  checkpoint("a", "3");
  checkpoint("a", "4", CheckpointKind::kExternal);
  checkpoint("a", "5", CheckpointKind::kSampler);
  EXPECT_THAT(ids(lists_->list_checkpoints("alice", true, 1100, {})),
              ElementsAre("id5", "id4", "id3", "id2", "id1"));
  EXPECT_THAT(ids(lists_->list_checkpoints("alice", false, 1200, {.limit = 2})),
              ElementsAre("id5", "id3"));
  EXPECT_EQ(lists_->count_checkpoints("alice", false, 1200), 3);
  const CheckpointCount count = lists_->count_checkpoints_of("a", true, 1200);
  EXPECT_EQ(count.count, 3);
  const auto of_run = lists_->list_checkpoints_of(a, true, 1200, {.below = count.newest + 1});
  EXPECT_THAT(ids(of_run), ElementsAre("id5", "id4", "id3"));
  EXPECT_THAT(ids(lists_->list_checkpoints_of(a, true, 1100, {.below = of_run[1].number})),
              ElementsAre("id3", "id1"));
  const LastCheckpoints last = lists_->find_last_checkpoints("a", 1200);
  EXPECT_EQ(last.weights->id, "id3");
  EXPECT_EQ(last.sampler->id, "id5");
  EXPECT_FALSE(lists_->find_last_checkpoints(b.id, 1200).sampler.has_value());
}

TEST_P(StoreListsTest, NamesSessionsAndTheirSamplers) {
  for (const char* id : {"s", "t"}) {
    SessionRow session;
    session.id = id;
    session.tenant = "alice";
    store_->ensure_session(session, {});
  }
  EXPECT_THAT(lists_->list_sessions("alice", {}), ElementsAre("t", "s"));
  EXPECT_THAT(lists_->list_sessions("alice", {.offset = 1}), ElementsAre("s"));
  for (int64_t i : {0, 2, 1}) {
    SamplerRow row;
    row.id = "s:sample:" + std::to_string(i);
    row.session_id = "s";
    row.sampling_seq = i;
    row.tenant = "alice";
    store_->ensure_sampler(row);
  }
  EXPECT_EQ(lists_->list_samplers_of("s", -1, 2).at(1).id, "s:sample:1");
  EXPECT_EQ(lists_->list_samplers_of("s", 1, 2).at(0).id, "s:sample:2");
  EXPECT_TRUE(lists_->list_samplers_of("s", 2, 2).empty());
}

// Neither waits for the other.
TEST_P(StoreListsTest, ReadsWhileTheServerWrites) {
  run("a");
  Transaction transaction(*sql_);
  sql_->run("UPDATE runs SET tenant = 'bob'", {});
  EXPECT_THAT(ids(lists_->list_runs("alice", "", {})), ElementsAre("a"));
  transaction.commit();
  EXPECT_THAT(ids(lists_->list_runs("bob", "", {})), ElementsAre("a"));
  EXPECT_THROW(reader()->run("UPDATE runs SET tenant = 'eve'", {}), Error);
}

// Who waits for the store waits for one batch of rows, whatever a session has.
TEST_P(StoreListsTest, ASessionOfManyRowsIsForgottenInParts) {
  SessionRow session;
  session.id = "s";
  session.tenant = "alice";
  store_->ensure_session(session, {});
  for (int i = 0; i < 1200; ++i) {
    SamplerRow sampler;
    sampler.id = "s:sample:" + std::to_string(i);
    sampler.session_id = "s";
    sampler.sampling_seq = i;
    sampler.tenant = "alice";
    sampler.base_model = "base";
    store_->ensure_sampler(sampler);
  }
  run("s:train:0");
  store_->end_session("s", "finished", "", "", 1000);
  const double later = 1000 + 31 * 86400;
  EXPECT_TRUE(store_->prune_history(later, 10));
  EXPECT_EQ(store_->num_samplers("alice"), 700);
  EXPECT_TRUE(store_->find_session("s").has_value());
  int calls = 1;
  while (store_->prune_history(later, 10)) ++calls;
  EXPECT_LE(calls, 4);
  EXPECT_FALSE(store_->has_samplers("s"));
  EXPECT_FALSE(store_->find_session("s").has_value());
  EXPECT_FALSE(store_->find_run("s:train:0").has_value());
}

}  // namespace
}  // namespace strata::server
