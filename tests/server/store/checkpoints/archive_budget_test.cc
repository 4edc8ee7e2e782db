// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/archive_budget.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

using strata::testing::TempDir;
using strata::testing::write_bytes;

struct ArchiveRoomTest : ::testing::Test {
  ArchiveRoomTest() { limit.set_num_tenants(2); }
  // As a name; its file is written.
  bool take(const std::string& name, const std::string& tenant, double now, int64_t bytes = 100) {
    const bool is_taken = budget.take_evicting(dir.file(name), tenant, bytes, now);
    if (is_taken) write_bytes(dir.file(name), "x");
    if (is_taken) budget.finish_packing(dir.file(name));
    return is_taken;
  }
  [[nodiscard]] bool is_there(const std::string& name) const { return file_exists(dir.file(name)); }

  TempDir dir;
  SharedLimit limit{1000};  // 250 are each tenant's own
  ArchiveBudget budget{limit};
};

TEST_F(ArchiveRoomTest, OneTenantsArchivesDoNotDriveOutAnothers) {
  ASSERT_TRUE(take("b1", "bob", 0));
  ASSERT_TRUE(take("b2", "bob", 0));
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(take("a" + std::to_string(i), "alice", i));
  EXPECT_TRUE(is_there("b1"));
  EXPECT_TRUE(is_there("b2"));
  EXPECT_FALSE(is_there("a0"));
  EXPECT_TRUE(is_there("a29"));
  EXPECT_LE(limit.used(), 1000);
}

TEST_F(ArchiveRoomTest, WhatIsBeingReadStaysAndWhatIsIdleGoesForWhoHasLess) {
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(take("a" + std::to_string(i), "alice", 0));
  EXPECT_TRUE(take("b1", "bob", 1, 300));
  budget.touch(dir.file("a0"), 30);
  EXPECT_TRUE(take("b2", "bob", 59, 300)) << "b1 goes";
  EXPECT_FALSE(is_there("b1"));
  EXPECT_FALSE(take("b3", "bob", 59, 500)) << "alice may still be reading hers";
  EXPECT_TRUE(take("b3", "bob", 70, 500));
  EXPECT_FALSE(is_there("a1"));
  EXPECT_TRUE(is_there("a0"));
  EXPECT_FALSE(take("b4", "bob", 70, 751)) << "more than there ever is";
  EXPECT_TRUE(is_there("b3"));
}

TEST_F(ArchiveRoomTest, WhoHasMoreTakesNothingFromWhoHasLess) {
  ASSERT_TRUE(take("b1", "bob", 0, 400));
  ASSERT_FALSE(take("a1", "alice", 1000, 650));
  EXPECT_TRUE(is_there("b1"));
  ASSERT_TRUE(take("a1", "alice", 1000, 350));
}

// Its file would appear in space that another has by then.
TEST_F(ArchiveRoomTest, WhatIsBeingPackedKeepsItsSpace) {
  ASSERT_TRUE(budget.take_evicting(dir.file("big"), "alice", 700, 0));
  EXPECT_FALSE(take("a", "alice", 1000, 400));
  EXPECT_FALSE(take("b", "bob", 1000, 400));
  EXPECT_TRUE(take("a", "alice", 1000, 50)) << "it fits";
  EXPECT_TRUE(take("a2", "alice", 1000, 40)) << "what is packed goes";
  EXPECT_FALSE(is_there("a"));
  budget.remove_idle(9000, 7200);
  EXPECT_EQ(limit.used(), 700);
  write_bytes(dir.file("big"), "x");
  budget.finish_packing(dir.file("big"));
  EXPECT_TRUE(take("b", "bob", 9000, 400));
  EXPECT_FALSE(is_there("big"));
  ASSERT_TRUE(budget.take_evicting(dir.file("failed"), "alice", 100, 9000));
  budget.finish_packing(dir.file("failed"));
  EXPECT_EQ(limit.used(), 400);
}

TEST_F(ArchiveRoomTest, WhatNobodyReadsIsRemoved) {
  ASSERT_TRUE(take("old", "alice", 0));
  ASSERT_TRUE(take("new", "alice", 0));
  budget.touch(dir.file("new"), 5000);
  budget.remove_idle(7300, 7200);
  EXPECT_FALSE(is_there("old"));
  EXPECT_TRUE(is_there("new"));
  EXPECT_EQ(limit.used(), 100);
  budget.drop(dir.file("new"));
  EXPECT_EQ(limit.used(), 0);
}

}  // namespace
}  // namespace strata::server
