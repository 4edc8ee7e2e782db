// SPDX-License-Identifier: Apache-2.0
// Instantiated where store_test.cc is: over SQLite and over a real PostgreSQL.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "tests/server/store/state/store_fixture.h"

namespace strata::server {
namespace {

// Clients that come and go for ever fill no disk; what has a checkpoint stays.
TEST_P(Store, EndedSessionsAndRunsAreForgotten) {
  for (int i = 0; i < 40; ++i) {
    const std::string id = "s" + std::to_string(i);
    session(id);
    add_run(id, 0);
    SamplerRow sampler;
    sampler.id = id + ":sample:0";
    sampler.session_id = id;
    sampler.tenant = "alice";
    sampler.base_model = "base";
    store_->ensure_sampler(sampler);
    if (i != 39) store_->end_session(id, "finished", "", "", 1000);
  }
  add_checkpoint("s3:train:0", "a");
  while (store_->prune_history(2000, 10)) {
  }
  EXPECT_EQ(lists().list_sessions("alice", {}).size(), 12u);  // ten, the one alive, s3
  EXPECT_TRUE(store_->find_session("s3").has_value());
  EXPECT_TRUE(store_->find_run("s3:train:0").has_value());
  EXPECT_TRUE(store_->find_session("s38").has_value());
  EXPECT_FALSE(store_->find_session("s7").has_value());
  EXPECT_FALSE(store_->find_run("s7:train:0").has_value());
  EXPECT_FALSE(store_->find_sampler("s7:sample:0").has_value());
  store_->prune_history(1000 + 31 * 86400, 10);
  EXPECT_EQ(lists().list_sessions("alice", {}).size(), 2u);
  // Of tenants of whom nothing ended meanwhile nothing is looked at; of the others it is.
  for (int i = 40; i < 60; ++i) {
    session("s" + std::to_string(i));
    store_->end_session("s" + std::to_string(i), "timed_out", "", "", 31 * 86400);
  }
  while (store_->prune_history(31 * 86400, 10)) {
  }
  EXPECT_EQ(lists().list_sessions("alice", {}).size(), 12u);
  EXPECT_FALSE(store_->find_session("s49").has_value());
  // Likewise of those who lost the checkpoint that kept a run.
  EXPECT_TRUE(store_->find_run("s3:train:0").has_value());
  EXPECT_TRUE(store_->delete_checkpoint("id1", 1100));
  store_->mark_files_gone("id1");
  store_->prune_old_rows(10 * 86400);
  while (store_->prune_history(10 * 86400, 10)) {
  }
  EXPECT_FALSE(store_->find_session("s3").has_value());
  EXPECT_FALSE(store_->find_run("s3:train:0").has_value());
}

// A save is being written when its session ends, and its run is forgotten before it is done.
TEST_P(Store, ACheckpointWhoseRunWasForgottenHasOneAgain) {
  session("s");
  add_run("s", 0);
  store_->end_run("s:train:0", RunState::kUnloaded, 1000);
  store_->end_session("s", "finished", "", "", 1000);
  while (store_->prune_history(2000, 0)) {
  }
  ASSERT_FALSE(store_->find_run("s:train:0").has_value());
  const CheckpointRow row = add_checkpoint("s:train:0", "a");
  const std::optional<RunRow> run = store_->find_run("s:train:0");
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->tenant, row.tenant);
  EXPECT_EQ(run->base_model, "base");
  EXPECT_EQ(run->state, RunState::kUnloaded);
  EXPECT_EQ(lists().count_runs("alice", ""), 1);
  add_checkpoint("s:train:0", "b");
  EXPECT_EQ(lists().count_runs("alice", ""), 1);
}

// Who waits for the store waits for a batch of them, however many checkpoints keep.
TEST_P(Store, KeptHistoryIsLookedAtInBatches) {
  session("s");
  for (int i = 0; i < 620; ++i) {
    add_run("s", i);
    const std::string id = "s:train:" + std::to_string(i);
    if (i != 5 && i != 610) add_checkpoint(id, "a");
    store_->end_run(id, i % 2 == 0 ? RunState::kUnloaded : RunState::kLost, 1000);
  }
  int batches = 1;
  while (store_->prune_history(2000, 10)) ++batches;  // beyond the newest ten
  EXPECT_GE(batches, 2);
  EXPECT_FALSE(store_->find_run("s:train:5").has_value());
  EXPECT_TRUE(store_->find_run("s:train:610").has_value());
  batches = 1;
  while (store_->prune_history(1000 + 31 * 86400, 10)) ++batches;  // all that are old
  EXPECT_GE(batches, 2);
  EXPECT_FALSE(store_->find_run("s:train:610").has_value());
  EXPECT_TRUE(store_->find_run("s:train:0").has_value());
  EXPECT_TRUE(store_->find_run("s:train:619").has_value());
}

// A database elsewhere is asked some fifty times at most, while others wait.
TEST_P(Store, HistoryIsForgottenByFewStatements) {
  const auto faults = std::make_shared<SqlFaults>();
  store_.reset();
  store_ = std::make_unique<StateStore>(std::make_unique<FaultySql>(connect(), faults), 1000);
  for (int i = 0; i < 100; ++i) {
    const std::string id = "s" + std::to_string(i);
    session(id);
    SamplerRow sampler;
    sampler.id = id + ":sample:0";
    sampler.session_id = id;
    sampler.tenant = "alice";
    store_->ensure_sampler(sampler);
    store_->end_session(id, "finished", "", "", 1000);
  }
  const auto most = [&](const auto& prune) {
    size_t statements = 0;
    for (bool has_more = true; has_more; statements = std::max(statements, faults->ran.size())) {
      faults->ran.clear();
      has_more = prune();
    }
    return statements;
  };
  EXPECT_LE(most([&] { return store_->prune_samplers(50); }), 60U);
  EXPECT_EQ(store_->num_samplers("alice"), 50);
  EXPECT_LE(most([&] { return store_->prune_history(2000, 10); }), 60U);
  EXPECT_EQ(lists().list_sessions("alice", {}).size(), 10u);
}

TEST_P(Store, AFaultWhileHistoryIsForgottenForgetsNothingElse) {
  const auto faults = std::make_shared<SqlFaults>();
  store_.reset();
  store_ = std::make_unique<StateStore>(std::make_unique<FaultySql>(connect(), faults), 1000);
  for (int i = 0; i < 30; ++i) {
    session("s" + std::to_string(i));
    store_->end_session("s" + std::to_string(i), "finished", "", "", 1000);
  }
  for (const char* statement : {"SELECT number", "DELETE FROM sessions", "COMMIT"}) {
    faults->statement = statement;
    EXPECT_THROW(store_->prune_history(2000, 10), Error);
    EXPECT_TRUE(store_->find_session("s0").has_value());
  }
  faults->statement.clear();
  while (store_->prune_history(2000, 10)) {
  }
  EXPECT_EQ(lists().list_sessions("alice", {}).size(), 10u);
}

// A connection is lost behind a statement that was done, which is then sent again.
TEST_P(Store, WhatIsSentTwiceIsDoneOnce) {
  const auto faults = std::make_shared<SqlFaults>();
  store_.reset();
  store_ = std::make_unique<StateStore>(std::make_unique<FaultySql>(connect(), faults), 1000);
  session("s");
  add_run("s", 0);
  while (store_->prune_history(2000, 10)) {
  }
  faults->answers_lost = true;
  const int64_t alice = store_->intern_tenant("alice", 2000);
  EXPECT_EQ(store_->find_tenant(alice), "alice");
  store_->end_run("s:train:0", RunState::kUnloaded, 2000);
  while (store_->prune_history(2001, 0)) {
  }
  EXPECT_FALSE(store_->find_run("s:train:0").has_value());  // it was known to have ended
}

// A clock that was years ahead for a while leaves nothing behind that is looked at no more.
TEST_P(Store, OldHistoryIsForgottenAlsoBehindAClockThatWasAhead) {
  EXPECT_FALSE(store_->prune_history(1e9, 10));
  session("s");
  store_->end_session("s", "finished", "", "", 1000);
  EXPECT_FALSE(store_->prune_history(1000 + 31 * 86400, 10));
  EXPECT_FALSE(store_->find_session("s").has_value());
}

TEST_P(Store, OfTooManySamplersThoseOfEndedSessionsGoOldestFirst) {
  for (const char* id : {"old", "new", "alive"}) {
    session(id);
    for (int i = 0; i < 3; ++i) {
      SamplerRow row;
      row.id = id + std::to_string(i);
      row.session_id = id;
      row.sampling_seq = i;
      row.tenant = "alice";
      store_->ensure_sampler(row);
    }
  }
  for (const char* id : {"new", "old"}) store_->end_session(id, "finished", "", "", 1000);
  EXPECT_FALSE(store_->prune_samplers(9));
  EXPECT_FALSE(store_->prune_samplers(5));
  EXPECT_EQ(store_->num_samplers("alice"), 5);
  EXPECT_FALSE(store_->has_samplers("old"));
  open(2000);
  EXPECT_EQ(store_->num_samplers("alice"), 5);
  while (store_->prune_samplers(0)) {
  }
  EXPECT_EQ(store_->num_samplers("alice"), 3);  // alive
  EXPECT_FALSE(store_->has_samplers("new"));
}

}  // namespace
}  // namespace strata::server
