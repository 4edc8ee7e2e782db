// SPDX-License-Identifier: Apache-2.0
// What the schema's indexes are for.
#include "server/store/state/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/server/store/state/faulty_sql.h"
#include "tests/server/store/state/store_fixture.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

// The sweep looks every few seconds: never at all rows.
TEST(StoreIndexes, ASweepFindsByIndexes) {
  const strata::testing::TempDir dir;
  const auto faults = std::make_shared<SqlFaults>();
  StateStore store(std::make_unique<FaultySql>(open_sqlite(dir.file("db")), faults), 1000);
  faults->ran.clear();
  store.prune_history(1000, 10);  // the first one of a start looks at all tenants
  (void)store.find_collectable(1000);
  SessionRow session;
  session.id = "s";
  session.tenant = "alice";
  store.ensure_session(session, {});
  RunRow run;
  run.id = "s:train:0";
  run.tenant = "alice";
  EXPECT_TRUE(store.add_run(run));
  store.end_run(run.id, RunState::kUnloaded, 1000);
  store.end_session("s", "finished", "", "", 1000);
  store.prune_history(1000 + 3700, 10);
  store.prune_samplers(0);
  store.prune_old_rows(1000);
  (void)store.find_last_checkpoint(run.id, CheckpointKind::kWeights, 1000);
  store.save_stability_within_quota({"alice", "s", "q", "prompt", {{"q:0", "record"}}}, 1000, 1000);
  store.save_stability_within_quota({"alice", "s", "r", "prompt", {{"r:0", "record"}}}, 1000, 1000);
  const auto sql = open_sqlite(dir.file("db"));
  std::string plan;
  for (const std::string& statement : faults->ran) {
    const std::vector<SqlValue> values(static_cast<size_t>(std::ranges::count(statement, '?')),
                                       1000.0);
    for (const SqlRow& row : sql->run("EXPLAIN QUERY PLAN " + statement, values).rows)
      plan += std::get<std::string>(row[3]) + "\n";
  }
  for (const char* index :
       {"checkpoints_by_end", "checkpoints_by_expiry", "sessions_by_state", "runs_by_state",
        "sessions_by_end", "runs_by_end", "checkpoints_by_kind", "stability_prompts_by_time",
        "stability_prompts_of_tenant", "stability_by_prompt", "stability_by_use",
        "idempotency_by_time"})
    EXPECT_THAT(plan, HasSubstr(index));
  for (const char* table : {"checkpoints", "sessions", "runs", "idempotency", "stability"})
    EXPECT_THAT(plan, ::testing::Not(HasSubstr(std::string("SCAN ") + table))) << plan;
}

}  // namespace
}  // namespace strata::server
