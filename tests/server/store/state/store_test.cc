// SPDX-License-Identifier: Apache-2.0
// Every test here runs over SQLite and over a real PostgreSQL.
#include "server/store/state/store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "server/store/state/schema.h"
#include "tests/server/store/state/store_fixture.h"

namespace strata::server {
namespace {

using strata::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Databases, Store, ::testing::Values("sqlite", "postgresql"),
                         [](const auto& info) { return std::string(info.param); });

template <typename Row>
std::vector<std::string> ids(const std::vector<Row>& rows) {
  std::vector<std::string> out;
  for (const Row& row : rows) out.push_back(row.id);
  return out;
}

template <typename Row>
std::vector<std::string> ids(const std::vector<Listed<Row>>& rows) {
  std::vector<std::string> out;
  for (const Listed<Row>& listed : rows) out.push_back(listed.row.id);
  return out;
}

// What may go, and in how many batches it was found.
struct Collected {
  std::vector<std::string> ids;
  int num_batches = 0;
};
Collected collect(StateStore& store) {
  Collected out;
  StateStore::Collectable batch = store.find_collectable(2000);
  for (; batch.next; ++out.num_batches) {
    for (const CheckpointRow& row : batch.rows) out.ids.push_back(row.id);
    batch = store.find_collectable(2000, *batch.next);
  }
  return out;
}

TEST_P(Store, CountsBootsAndKeepsTenants) {
  EXPECT_EQ(store_->boot(), 1);
  const int64_t alice = store_->intern_tenant("alice", 1000);
  EXPECT_EQ(store_->intern_tenant("alice", 1000), alice);
  EXPECT_NE(store_->intern_tenant("bob", 1000), alice);
  open(2000);
  EXPECT_EQ(store_->boot(), 2);
  EXPECT_EQ(store_->find_tenant(alice), "alice");
  EXPECT_EQ(store_->find_tenant(999), std::nullopt);
}

TEST_P(Store, RefusesANewerSchemaAndLeavesItAlone) {
  store_.reset();
  connect()->run("UPDATE meta SET value = 99 WHERE name = 'schema_version'", {});
  EXPECT_THAT(error_of([&] { open(2000); }), HasSubstr("schema version 99"));
  const SqlResult boot = connect()->run("SELECT value FROM meta WHERE name = 'boot'", {});
  EXPECT_EQ(boot.rows[0][0], SqlValue(int64_t{1}));
}

TEST_P(Store, KeepsSessionsWithEveryField) {
  SessionRow row;
  row.id = "s1";
  row.tenant = "alice";
  row.created_at = 1000.25;
  row.sdk_version = "0.38.0";
  row.tags = R"(["a"])";
  row.user_metadata = R"({"k":"v"})";
  row.display_name = "M\xc3\xbcller's";
  row.project_id = "p";
  EXPECT_EQ(store_->ensure_session(row, {"key"}), "s1");
  row.id = "s2";
  EXPECT_EQ(store_->ensure_session(row, {"key"}), "s1");
  row.tenant = "bob";
  EXPECT_EQ(store_->ensure_session(row, {"key"}), "s2");
  open(2000);
  const SessionRow found = *store_->find_session("s1");
  EXPECT_EQ(found.created_at, 1000.25);
  EXPECT_EQ(found.sdk_version, "0.38.0");
  EXPECT_EQ(found.tags, R"(["a"])");
  EXPECT_EQ(found.user_metadata, R"({"k":"v"})");
  EXPECT_EQ(found.display_name, "M\xc3\xbcller's");
  EXPECT_EQ(found.project_id, "p");
  EXPECT_EQ(found.ended_at, std::nullopt);
  EXPECT_EQ(store_->find_session("s3"), std::nullopt);
  EXPECT_THAT(lists().list_sessions("alice", {}), ElementsAre("s1"));
  EXPECT_THAT(store_->read_active_sessions(),
              ElementsAre(::testing::Pair("s1", "alice"), ::testing::Pair("s2", "bob")));
}

TEST_P(Store, EndsASessionOnceWithItsRuns) {
  session("s");
  add_run("s", 0);
  EXPECT_TRUE(store_->end_session("s", "finished", "success", "", 1500));
  EXPECT_FALSE(store_->end_session("s", "finished", "errored", "late", 1600));
  EXPECT_EQ(store_->find_session("s")->end_reason, "success");
  EXPECT_EQ(store_->find_run("s:train:0")->state, RunState::kUnloaded);
  EXPECT_THAT(store_->read_active_sessions(), ElementsAre());
}

TEST_P(Store, LiveRunsAreLostByARestartAndOthersAreNot) {
  session("s");
  add_run("s", 0);
  add_run("s", 1);
  store_->end_run("s:train:1", RunState::kUnloaded, 1100);
  open(2000);
  EXPECT_EQ(store_->find_run("s:train:0")->state, RunState::kLost);
  EXPECT_EQ(store_->find_run("s:train:0")->ended_at, 2000);
  EXPECT_EQ(store_->find_run("s:train:1")->state, RunState::kUnloaded);
  EXPECT_EQ(store_->find_run("s:train:0")->lora.seed, ~0ULL);
  EXPECT_FALSE(store_->find_run("s:train:0")->lora.train_mlp);
}

TEST_P(Store, MovesAllRunsOfASession) {
  session("s");
  session("t");
  for (int64_t i = 0; i < 1001; ++i) add_run("s", i);
  add_run("t", 0);
  EXPECT_EQ(set_project("s", "p"), 21);
  EXPECT_EQ(store_->find_session("s")->project_id, "p");
  EXPECT_EQ(lists().count_runs("alice", "p"), 1001);
  EXPECT_EQ(lists().count_runs("alice", "default"), 1);
}

TEST_P(Store, ListsRunsNewestFirstByTenantAndProject) {
  session("s");
  session("t", "bob");
  for (int64_t i = 0; i < 5; ++i) add_run("s", i);
  RunRow other = add_run("t", 0, "bob");
  EXPECT_FALSE(store_->add_run(other));
  EXPECT_THAT(ids(lists().list_runs("alice", "", {.limit = 2, .offset = 1})),
              ElementsAre("s:train:3", "s:train:2"));
  EXPECT_EQ(lists().count_runs("alice", ""), 5);
  set_project("t", "p");
  EXPECT_EQ(lists().count_runs("bob", "p"), 1);
  EXPECT_EQ(lists().count_runs("bob", "default"), 0);
  EXPECT_THAT(lists().list_runs_of("s"), ::testing::SizeIs(5));
  store_->touch_run("s:train:4", 1234.5);
  EXPECT_EQ(store_->find_run("s:train:4")->last_request_at, 1234.5);
  open(2000);
  EXPECT_EQ(store_->find_run("s:train:4")->last_request_at, 1234.5);
}

TEST_P(Store, SamplersAreOnePerNumber) {
  session("s");
  SamplerRow row;
  row.id = "s:sample:0";
  row.session_id = "s";
  row.sampling_seq = 1'000'000'000'000'000'000;
  row.tenant = "alice";
  row.base_model = "base";
  EXPECT_EQ(store_->ensure_sampler(row).id, "s:sample:0");
  row.id = "other";
  EXPECT_EQ(store_->ensure_sampler(row).id, "s:sample:0");
  open(2000);
  const SamplerRow found = *store_->find_sampler("s:sample:0");
  EXPECT_EQ(found.boot, 1);
  EXPECT_EQ(found.sampling_seq, row.sampling_seq);
  EXPECT_EQ(found.model_path, std::nullopt);
  EXPECT_TRUE(store_->has_samplers("s"));
  EXPECT_FALSE(store_->has_samplers("t"));
  row.id = "s:sample:1";
  row.sampling_seq = 1;
  row.is_ephemeral = true;
  store_->ensure_sampler(row);
  EXPECT_THAT(store_->count_samplers_by_session(), ElementsAre(::testing::Pair("s", 1)));
  EXPECT_EQ(store_->num_samplers("alice"), 2);
  store_->end_session("s", "finished", "", "", 2000);
  EXPECT_THAT(store_->count_samplers_by_session(), ElementsAre());
}

TEST_P(Store, ANewCheckpointReplacesTheOneOfItsName) {
  session("s");
  add_run("s", 0);
  const CheckpointRow first = add_checkpoint("s:train:0", "a");
  CheckpointRow sampler = add_checkpoint("s:train:0", "a", {}, CheckpointKind::kSampler);
  const CheckpointRow second = add_checkpoint("s:train:0", "a");
  EXPECT_EQ(store_->find_checkpoint("s:train:0", CheckpointKind::kWeights, "a", 1100)->id, "id3");
  EXPECT_EQ(store_->find_checkpoint_by_id(first.id)->deleted_at, second.created_at);
  EXPECT_THAT(ids(lists().list_checkpoints("alice", true, 1100, {})), ElementsAre("id3", "id2"));
  EXPECT_EQ(store_->find_last_checkpoint("s:train:0", CheckpointKind::kSampler, 1100)->id, "id2");
  EXPECT_THAT(ids(store_->find_collectable(1100).rows), ElementsAre("id1"));
  EXPECT_EQ(store_->stored_bytes(), 300);
  store_->mark_files_gone("id1");
  EXPECT_EQ(store_->stored_bytes(), 200);
  EXPECT_THAT(store_->find_collectable(1100).rows, ElementsAre());
}

// A batch at a time, and without what clients wrote: however many one tenant has.
TEST_P(Store, WhatMayGoIsReadInBatches) {
  session("s");
  add_run("s", 0);
  std::vector<std::string> wanted;
  const auto add = [&](int i, std::optional<double> expires_at) {
    wanted.push_back(add_checkpoint("s:train:0", "a" + std::to_string(i), expires_at).id);
  };
  for (int i = 0; i < 510; ++i) add(i, 1100.0 + i % 3);
  for (int i = 510; i < 520; ++i) {
    add(i, std::nullopt);
    EXPECT_TRUE(store_->delete_checkpoint(wanted.back(), 1090));
  }
  add_checkpoint("s:train:0", "stays", 5000.0);
  const Collected found = collect(*store_);
  EXPECT_EQ(found.num_batches, 7);
  EXPECT_THAT(found.ids, ::testing::UnorderedElementsAreArray(wanted));
}

// Those that a sampler reads are passed by, some at a time.
TEST_P(Store, WhatMayNotGoIsPassedInBatches) {
  session("s");
  add_run("s", 0);
  for (int i = 0; i < 130; ++i) {
    const std::string id = add_checkpoint("s:train:0", "a" + std::to_string(i)).id;
    EXPECT_TRUE(store_->delete_checkpoint(id, 1090));
    if (i == 64) continue;
    SamplerRow row;
    row.id = row.checkpoint_id.emplace(id);
    row.session_id = "s";
    row.sampling_seq = i;
    row.tenant = "alice";
    store_->ensure_sampler(row);
  }
  const Collected found = collect(*store_);
  EXPECT_GE(found.num_batches, 2);
  EXPECT_THAT(found.ids, ElementsAre("id65"));
}

// What is deleted while a sweep goes on is the next one's, or it might never end.
TEST_P(Store, WhatIsDeletedMeanwhileIsNotLookedAt) {
  session("s");
  add_run("s", 0);
  for (const char* name : {"a", "b"}) add_checkpoint("s:train:0", name);
  EXPECT_TRUE(store_->delete_checkpoint("id1", 1090));
  StateStore::Collectable batch = store_->find_collectable(2000);
  EXPECT_THAT(ids(batch.rows), ElementsAre("id1"));
  EXPECT_TRUE(store_->delete_checkpoint("id2", 1100));
  batch = store_->find_collectable(2000, *batch.next);
  EXPECT_FALSE(batch.next.has_value());
  EXPECT_EQ(ids(store_->find_collectable(2000).rows).size(), 2U);
}

// However many samplers there ever were of one checkpoint, some are looked at at a time.
TEST_P(Store, SamplersOfOneCheckpointArePassedInParts) {
  session("old");
  session("alive");
  add_run("old", 0);
  add_checkpoint("old:train:0", "a");
  EXPECT_TRUE(store_->delete_checkpoint("id1", 1090));
  const auto add = [&](const std::string& session_id, int64_t seq) {
    SamplerRow row;
    row.id = session_id + std::to_string(seq);
    row.session_id = session_id;
    row.sampling_seq = seq;
    row.tenant = "alice";
    row.checkpoint_id = "id1";
    store_->ensure_sampler(row);
  };
  for (int i = 0; i < 1100; ++i) add("old", i);
  add("alive", 0);
  store_->end_session("old", "finished", "", "", 1000);
  for (const size_t wanted : {0, 1}) {
    const Collected found = collect(*store_);
    EXPECT_EQ(found.num_batches, 3);
    EXPECT_EQ(found.ids.size(), wanted);
    store_->end_session("alive", "finished", "", "", 1000);
  }
}

TEST_P(Store, ExpiryCountsFromItsSecondOn) {
  session("s");
  add_run("s", 0);
  add_checkpoint("s:train:0", "a", 1200.0);
  add_checkpoint("s:train:0", "b");
  add_checkpoint("s:train:0", "c", {}, CheckpointKind::kExternal);
  EXPECT_EQ(lists().count_checkpoints("alice", true, 1199), 3);
  EXPECT_EQ(lists().count_checkpoints("alice", false, 1199), 2);
  EXPECT_THAT(ids(lists().list_checkpoints("alice", false, 1200, {})), ElementsAre("id2"));
  EXPECT_THAT(ids(lists().list_checkpoints("alice", true, 1200, {})), ElementsAre("id3", "id2"));
  EXPECT_EQ(store_->find_checkpoint("s:train:0", CheckpointKind::kWeights, "a", 1200),
            std::nullopt);
  EXPECT_FALSE(store_->delete_checkpoint("id1", 1200));
  EXPECT_TRUE(store_->delete_checkpoint("id2", 1200));
  EXPECT_FALSE(store_->delete_checkpoint("id2", 1200));
  store_->set_expiry("id3", 1300.0);
  store_->set_expiry("id3", std::nullopt);
  store_->set_public("id3", true);
  EXPECT_TRUE(store_->find_checkpoint_by_id("id3")->is_public);
  EXPECT_EQ(store_->find_checkpoint_by_id("id3")->expires_at, std::nullopt);
}

TEST_P(Store, ASamplerOfALivingSessionHoldsTheFiles) {
  session("s");
  add_run("s", 0);
  add_checkpoint("s:train:0", "a", {}, CheckpointKind::kSampler);
  SamplerRow row;
  row.id = "x";
  row.session_id = "s";
  row.tenant = "alice";
  row.base_model = "base";
  row.checkpoint_id = "id1";
  store_->ensure_sampler(row);
  add_checkpoint("s:train:0", "b", {}, CheckpointKind::kSampler);
  session("t", "bob");
  row.id = "y";
  row.session_id = "t";
  row.tenant = "bob";
  row.checkpoint_id = "id2";
  store_->ensure_sampler(row);
  EXPECT_TRUE(store_->delete_checkpoint("id1", 1100));
  EXPECT_TRUE(store_->delete_checkpoint("id2", 1100));
  EXPECT_THAT(ids(store_->find_collectable(1100).rows), ElementsAre("id2"))
      << "bob's keeps no files";
  store_->mark_files_gone("id2");
  EXPECT_THAT(store_->find_collectable(1100).rows, ElementsAre());
  open(2000);
  EXPECT_THAT(store_->find_collectable(2000).rows, ElementsAre());
  store_->end_session("s", "timed_out", "", "", 2100);
  EXPECT_THAT(ids(store_->find_collectable(2100).rows), ElementsAre("id1"));
  store_->mark_files_gone("id1");
  store_->prune_old_rows(2100);
  EXPECT_TRUE(store_->find_checkpoint_by_id("id1").has_value());
  store_->prune_old_rows(2100 + 8 * 86400);
  EXPECT_FALSE(store_->find_checkpoint_by_id("id1").has_value());
}

TEST_P(Store, RemembersIdempotencyKeysForADay) {
  SessionRow row;
  row.id = "s";
  row.tenant = "alice";
  row.created_at = 1000;
  store_->ensure_session(row, {"k", 7});
  EXPECT_EQ(store_->find_remembered("alice", "session", {"k", 7}), "s");
  EXPECT_EQ(store_->find_remembered("bob", "session", {"k", 7}), std::nullopt);
  EXPECT_THAT(error_of([&] { store_->find_remembered("alice", "session", {"k", 8}); }),
              HasSubstr("another request"));
  row.id = "t";
  EXPECT_THAT(error_of([&] { store_->ensure_session(row, {"k", 8}); }),
              HasSubstr("another request"));
  store_->prune_old_rows(1000 + 86401);
  EXPECT_EQ(store_->find_remembered("alice", "session", {"k", 7}), std::nullopt);
}

TEST_P(Store, WhatAgedOutIsDroppedInBatches) {
  for (int i = 0; i < 501; ++i) {
    SessionRow row;
    row.id = "s" + std::to_string(i);
    row.tenant = "alice";
    row.created_at = 1000;
    store_->ensure_session(row, {"k" + std::to_string(i), 7});
  }
  EXPECT_TRUE(store_->prune_old_rows(1000 + 86401));
  EXPECT_FALSE(store_->prune_old_rows(1000 + 86401));
  for (const char* key : {"k0", "k250", "k500"})
    EXPECT_EQ(store_->find_remembered("alice", "session", {key, 7}), std::nullopt) << key;
}

// A database that hangs, or is away, costs each call a moment; when it is back, all goes on.
TEST_P(Store, ADatabaseThatAnswersNothingHoldsUpNobody) {
  if (is_sqlite()) GTEST_SKIP() << "SQLite is a file";
  session("s");
  TestPostgres::shared()->freeze(true);
  const auto seconds = [&] {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(error_of([&] { store_->find_session("s"); }), "");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_LT(seconds(), 6.0);
  for (int i = 0; i < 10; ++i) EXPECT_LT(seconds(), 0.6);
  TestPostgres::shared()->freeze(false);
  std::string fault = "away";
  for (int i = 0; i < 200 && !fault.empty(); ++i) {
    fault = error_of([&] { store_->find_session("s"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(fault, "");
  EXPECT_TRUE(store_->find_session("s").has_value());
}

// A database of before records had prompts of their own: it opens, and its records are found.
TEST_P(Store, AnOlderDatabaseOpens) {
  session("s");
  store_.reset();
  std::unique_ptr<Sql> sql = connect();
  for (const char* statement :
       {"DROP TABLE usage_by_key", "DROP TABLE stability_prompts", "DROP INDEX stability_by_prompt",
        "DROP INDEX idempotency_by_time", "DROP INDEX checkpoints_by_expiry",
        "DROP INDEX checkpoints_by_end", "DROP INDEX checkpoints_by_run",
        "DROP INDEX sessions_by_state", "DROP INDEX runs_by_state", "DROP INDEX sessions_by_end",
        "DROP INDEX runs_by_end", "DROP INDEX checkpoints_by_kind",
        "DROP INDEX samplers_of_checkpoint",
        "CREATE INDEX samplers_by_checkpoint ON samplers (checkpoint_id)",
        "ALTER TABLE stability DROP COLUMN prompt_id",
        "ALTER TABLE idempotency DROP COLUMN fingerprint",
        "UPDATE meta SET value = 1 WHERE name = 'schema_version'",
        "INSERT INTO idempotency VALUES ('alice', 'copy', 'k', 'path', 1000)"})
    sql->run(statement, {});
  const SqlValue record = Blob{"1 1 00"};
  sql->run("INSERT INTO stability VALUES ('s', 'q', 1000, ?)", {&record, 1});
  sql.reset();
  open(2000);
  EXPECT_TRUE(store_->find_session("s").has_value());
  EXPECT_EQ(store_->find_remembered("alice", "copy", {"k", 5}), "path");
  const auto found = store_->find_stability("s", "q", 2000);
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->prompt.has_value());
  EXPECT_EQ(found->record, "1 1 00");
}

TEST_P(Store, KeepsWhatKeysHaveUsed) {
  EXPECT_TRUE(store_->read_usage_rows().empty());
  const UsageRow a{"alice", "k1", {1, 2, 3}}, b{"bob", "k1", {4, 5, int64_t{1} << 60}};
  store_->upsert_usage({b, a});
  store_->upsert_usage({});
  EXPECT_THAT(store_->read_usage_rows(), ElementsAre(a, b));
  const UsageRow more{"alice", "k1", {7, 8, 9}};
  store_->upsert_usage({more});
  EXPECT_THAT(store_->read_usage_rows(), ElementsAre(more, b));
  std::vector<UsageRow> all;
  for (int i = 0; i < 200; ++i) all.push_back({fmt::format("t{:03}", i), "k", {i, 1, 2, 3}});
  store_->upsert_usage(all);
  std::vector<UsageRow> rows = store_->read_usage_rows();
  EXPECT_THAT(std::vector<UsageRow>(rows.begin() + 2, rows.end()), all);
}

TEST_P(Store, RefusesTextsThatOneDatabaseCouldNotKeep) {
  SessionRow row;
  row.id = "s";
  row.tenant = "alice";
  row.display_name = std::string("a\0b", 3);
  EXPECT_THAT(error_of([&] { store_->ensure_session(row, {}); }), HasSubstr("NUL"));
  row.display_name = "\xff";
  EXPECT_THAT(error_of([&] { store_->ensure_session(row, {}); }), HasSubstr("UTF-8"));
  row.display_name = "'; DROP TABLE sessions; --";
  EXPECT_EQ(store_->ensure_session(row, {}), "s");
  EXPECT_EQ(store_->find_session("s")->display_name, row.display_name);
}

TEST_P(Store, ASecondServerIsRefusedAndALostConnectionIsOpenedAgain) {
  if (is_sqlite()) GTEST_SKIP() << "the data directory's lock does this";
  EXPECT_THAT(error_of([&] { connect(); }), HasSubstr("another strata serve"));
  session("s");
  TestPostgres::shared()->drop_connections();
  EXPECT_TRUE(store_->find_session("s").has_value());
}

TEST_P(Store, AServerWaitsForTheOneBeforeItToBeGone) {
  if (is_sqlite()) GTEST_SKIP() << "the data directory's lock does this";
  std::jthread ending([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    store_.reset();
  });
  EXPECT_NE(connect(), nullptr);
}

TEST(Times, AreRfc3339InUtc) {
  EXPECT_EQ(rfc3339(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(rfc3339(1700000000.1234), "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(rfc3339(1700000000.9999), "2023-11-14T22:13:21.000Z");
  EXPECT_EQ(rfc3339(-0.25), "1969-12-31T23:59:59.750Z");
  EXPECT_EQ(rfc3339(-97803751.447), "1966-11-26T00:17:28.553Z");
}

TEST(Times, AClockThatWasNeverSetIsNotBelieved) {
  EXPECT_EQ(rfc3339(believed_seconds(0)), "2020-01-01T00:00:00.000Z");
  EXPECT_EQ(believed_seconds(1'700'000'000.5), 1'700'000'000.5);
  EXPECT_THAT(error_of([] { check_clock(0); }), HasSubstr("1970-01-01T00:00:00.000Z"));
  EXPECT_NO_THROW(check_clock(1'700'000'000));
  EXPECT_NO_THROW(check_clock(clock_seconds()));
}

TEST(Times, AClockThatIsBehindTheStoreIsTold) {
  EXPECT_EQ(clock_warning(1'700'000'000, 1'700'000'050), "");
  EXPECT_THAT(clock_warning(1'700'000'000, 1'700'000'100),
              HasSubstr("the newest of what the server has stored is of 2023-11-14T22:15:00.000Z"));
}

}  // namespace
}  // namespace strata::server
