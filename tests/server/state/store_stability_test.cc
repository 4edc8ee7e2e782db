// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/state/store_fixture.h"

namespace strata::server {
namespace {

TEST_P(Store, StabilityRecordsLiveADaySinceTheirLastUse) {
  const std::string bytes("\0\xff' bytes", 9);
  store_->put_stability({"alice", "s", "q", "prompt", {{"q1", bytes}, {"q2", ""}}}, 1000, 1000);
  open(2000);
  const auto record = [&](const char* session, const char* sequence, double now) -> std::string {
    const auto found = store_->get_stability(session, sequence, now);
    return found ? *found->prompt + "|" + found->record : "none";
  };
  EXPECT_EQ(record("s", "q1", 80000), "prompt|" + bytes);
  store_->prune(1000 + 86401);
  EXPECT_EQ(record("s", "q2", 1000 + 86401), "none");
  EXPECT_EQ(record("s", "q1", 80000 + 86399), "prompt|" + bytes);
  EXPECT_EQ(record("t", "q1", 1000), "none");
}

// A clock that is a day ahead for a while takes nothing away.
TEST_P(Store, StabilityRecordsAreReadUntilTheyAreDropped) {
  store_->put_stability({"alice", "s", "q", "prompt", {{"q1", "bytes"}}}, 1000, 1000);
  EXPECT_TRUE(store_->get_stability("s", "q1", 1000 + 90000).has_value());
  EXPECT_TRUE(store_->get_stability("s", "q1", 1001).has_value());
}

// A large one may take the space of very many small ones.
TEST_P(Store, StabilityRecordsMakeSpaceInBatches) {
  const auto put = [&](const std::string& id, size_t size, double now) {
    store_->put_stability({"alice", "s", id, std::string(size, 'p'), {{id + ":0", ""}}}, 100'000,
                          now);
  };
  const auto is_there = [&](const std::string& id) {
    return store_->get_stability("s", id + ":0", 3000).has_value();
  };
  for (int i = 0; i < 1300; ++i)
    put(std::to_string(1000 + i), 44, 1000 + i);  // with their names 50
  put("large", 93 + 40'000, 2999);
  EXPECT_FALSE(is_there("1000"));
  EXPECT_FALSE(is_there("1101"));
  EXPECT_TRUE(is_there("1102"));
  put("larger", 92 + 98'000, 2999.5);
  EXPECT_FALSE(is_there("large"));
  EXPECT_FALSE(is_there("2299"));
  EXPECT_TRUE(is_there("larger"));
}

// A prompt is kept once a request, and a tenant's oldest requests make space for its younger ones.
TEST_P(Store, StabilityRecordsHaveAQuota) {
  const std::string prompt(1000, 'p');
  const auto put = [&](const char* tenant, const std::string& id, double now) {
    std::vector<StateStore::StabilityRecord> records;
    for (int i = 0; i < 10; ++i) records.push_back({id + ":" + std::to_string(i), "0123456789"});
    store_->put_stability({tenant, "s", id, prompt, records}, 3000, now);
  };
  const auto is_there = [&](const std::string& id) {
    return store_->get_stability("s", id + ":3", 1100).has_value();
  };
  put("bob", "b", 999);
  put("alice", "a1", 1000);
  put("alice", "a2", 1001);
  EXPECT_TRUE(is_there("a1"));
  put("alice", "a3", 1002);
  EXPECT_FALSE(is_there("a1"));
  EXPECT_TRUE(is_there("a2"));
  EXPECT_TRUE(is_there("a3"));
  open(2000);
  put("alice", "a4", 1003);
  EXPECT_FALSE(is_there("a2"));
  EXPECT_TRUE(is_there("b"));
}

}  // namespace
}  // namespace strata::server
