// SPDX-License-Identifier: Apache-2.0
// What waits for a disk, and for what.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "server/store/state/store.h"
#include "tests/base/temp_dir.h"
#include "tests/server/store/state/faulty_sql.h"

namespace strata::server {
namespace {

using strata::testing::TempDir;

// The disk that a commit waits for is not under the lock that all others need.
TEST(StoreSync, ASlowDiskHoldsUpNoReader) {
  TempDir dir;
  const auto faults = std::make_shared<SqlFaults>();
  StateStore store(std::make_unique<FaultySql>(open_sqlite(dir.file("strata.db")), faults), 1000);
  std::promise<void> syncing, done;
  faults->slow_sync = [&] {
    syncing.set_value();
    done.get_future().wait();
  };
  CheckpointRow row;
  row.id = "id";
  row.run_id = "r";
  row.tenant = "alice";
  row.name = "n";
  row.base_model = "base";
  std::thread writer([&] { store.upsert_checkpoint(row); });
  syncing.get_future().wait();
  EXPECT_TRUE(store.find_checkpoint_by_id("id").has_value());
  EXPECT_FALSE(store.find_session("s").has_value());
  done.set_value();
  writer.join();
}

TEST(StoreSync, WhatAClientWasToldIsSynced) {
  TempDir dir;
  const auto faults = std::make_shared<SqlFaults>();
  StateStore store(std::make_unique<FaultySql>(open_sqlite(dir.file("strata.db")), faults), 1000);
  int syncs = 0;
  faults->slow_sync = [&] { ++syncs; };
  store.set_public("id", false);
  EXPECT_EQ(syncs, 1);
  store.set_expiry("id", 2000.0);
  EXPECT_EQ(syncs, 2);
}

}  // namespace
}  // namespace strata::server
