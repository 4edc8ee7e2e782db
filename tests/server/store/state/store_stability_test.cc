// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "tests/server/store/state/store_fixture.h"

namespace strata::server {
namespace {

TEST_P(Store, StabilityRecordsLiveADaySinceTheirLastUse) {
  const std::string bytes("\0\xff' bytes", 9);
  store_->save_stability_within_quota({"alice", "s", "q", "prompt", {{"q1", bytes}, {"q2", ""}}},
                                      1000, 1000);
  open(2000);
  const auto record = [&](const char* session, const char* sequence, double now) -> std::string {
    const auto found = store_->find_stability(session, sequence, now);
    return found ? *found->prompt + "|" + found->record : "none";
  };
  EXPECT_EQ(record("s", "q1", 80000), "prompt|" + bytes);
  store_->prune_old_rows(1000 + 86401);
  EXPECT_EQ(record("s", "q2", 1000 + 86401), "none");
  EXPECT_EQ(record("s", "q1", 80000 + 86399), "prompt|" + bytes);
  EXPECT_EQ(record("t", "q1", 1000), "none");
}

// A clock that is a day ahead for a while takes nothing away.
TEST_P(Store, StabilityRecordsAreReadUntilTheyAreDropped) {
  store_->save_stability_within_quota({"alice", "s", "q", "prompt", {{"q1", "bytes"}}}, 1000, 1000);
  EXPECT_TRUE(store_->find_stability("s", "q1", 1000 + 90000).has_value());
  EXPECT_TRUE(store_->find_stability("s", "q1", 1001).has_value());
}

// A large one may take the space of very many small ones.
TEST_P(Store, StabilityRecordsMakeSpaceInBatches) {
  constexpr int64_t kRows = 2 * StateStore::kStabilityRowBytes, kQuota = 900'000;
  const auto put = [&](const std::string& id, int64_t bytes, double now) {
    const std::string record = id + ":0";
    const int64_t prompt = bytes - kRows - std::ssize(record);
    store_->save_stability_within_quota(
        {"alice", "s", id, std::string(static_cast<size_t>(prompt), 'p'), {{record, ""}}}, kQuota,
        now);
  };
  const auto is_there = [&](const std::string& id) {
    return store_->find_stability("s", id + ":0", 3000).has_value();
  };
  for (int i = 0; i < 1300; ++i) put(std::to_string(1000 + i), 650, 1000 + i);
  put("large", kQuota - (1300 - 102) * 650, 2999);
  EXPECT_FALSE(is_there("1000"));
  EXPECT_FALSE(is_there("1101"));
  EXPECT_TRUE(is_there("1102"));
  put("larger", kQuota, 2999.5);
  EXPECT_FALSE(is_there("large"));
  EXPECT_FALSE(is_there("2299"));
  EXPECT_TRUE(is_there("larger"));
}

// Who waits for the store, or for a database elsewhere, waits for some records.
TEST_P(Store, StabilityRecordsAreWrittenAndDroppedInBatches) {
  const auto faults = std::make_shared<SqlFaults>();
  store_.reset();
  store_ = std::make_unique<StateStore>(std::make_unique<FaultySql>(connect(), faults), 1000);
  StateStore::StabilityRequest request{"alice", "s", "q", "prompt", {}};
  for (int i = 0; i < 1024; ++i) request.records.push_back({"q:" + std::to_string(i), "record"});
  faults->ran.clear();
  store_->save_stability_within_quota(request, 10'000'000, 1000);
  EXPECT_LE(faults->ran.size(), 24U);
  for (const char* one : {"q:0", "q:63", "q:64", "q:1023"})
    EXPECT_TRUE(store_->find_stability("s", one, 1000).has_value()) << one;
  for (int i = 0; i < 4; ++i) {
    request.id = "r" + std::to_string(i);
    for (auto& record : request.records) record.sequence_id = request.id + record.sequence_id;
    store_->save_stability_within_quota(request, 10'000'000, 1001 + i);
  }
  faults->ran.clear();
  store_->save_stability_within_quota({"alice", "s", "new", "prompt", {}}, 1000, 2000);
  EXPECT_GE(std::ranges::count_if(
                faults->ran,
                [](const std::string& one) { return one.starts_with("DELETE FROM stability W"); }),
            3);
  EXPECT_FALSE(store_->find_stability("s", "q:1023", 2000).has_value());
  EXPECT_FALSE(store_->find_stability("s", "r3r2r1r0q:0", 2000).has_value());
}

// A record is there when its prompt is, which is written last.
TEST_P(Store, AStabilityRecordWithoutItsPromptIsNone) {
  const auto faults = std::make_shared<SqlFaults>();
  store_.reset();
  store_ = std::make_unique<StateStore>(std::make_unique<FaultySql>(connect(), faults), 1000);
  faults->statement = "INSERT INTO stability_prompts";
  const StateStore::StabilityRequest request{"alice", "s", "q", "prompt", {{"q:0", "record"}}};
  EXPECT_THROW(store_->save_stability_within_quota(request, 10'000, 1000), Error);
  EXPECT_FALSE(store_->find_stability("s", "q:0", 1000).has_value());
  faults->statement.clear();
  const StateStore::StabilityRequest again{"alice", "s", "q", "prompt", {{"q:0", "another"}}};
  store_->save_stability_within_quota(again, 10'000, 1000);
  EXPECT_EQ(store_->find_stability("s", "q:0", 1000)->prompt, "prompt");
  EXPECT_EQ(store_->find_stability("s", "q:0", 1000)->record, "another");
}

// A number that was forgotten may come again: its records are the last ones, and count once.
TEST_P(Store, StabilityRecordsThatComeAgainCountOnce) {
  const auto put = [&](const std::string& id, std::vector<StateStore::StabilityRecord> records) {
    store_->save_stability_within_quota({"alice", "s", id, "prompt", std::move(records)}, 2000,
                                        1000);
  };
  const auto record = [&](const std::string& id) {
    const auto found = store_->find_stability("s", id, 1000);
    return found ? found->record : "none";
  };
  put("a", {{"a:0", "one"}});
  put("b", {{"b:0", "two"}, {"b:1", "two"}});
  for (int i = 0; i < 10; ++i) put("b", {{"b:0", "three"}});
  put("b", {{"b:0", "four"}, {"b:2", "four"}});
  EXPECT_EQ(record("a:0"), "one");
  EXPECT_EQ(record("b:0"), "four");
  EXPECT_EQ(record("b:1"), "none");
  EXPECT_EQ(record("b:2"), "four");
}

// A prompt is kept once a request, and a tenant's oldest requests make space for its younger ones.
TEST_P(Store, StabilityRecordsHaveAQuota) {
  const std::string prompt(1000, 'p');
  const auto put = [&](const char* tenant, const std::string& id, double now) {
    std::vector<StateStore::StabilityRecord> records;
    for (int i = 0; i < 10; ++i) records.push_back({id + ":" + std::to_string(i), "0123456789"});
    store_->save_stability_within_quota({tenant, "s", id, prompt, records}, 9500, now);
  };
  const auto is_there = [&](const std::string& id) {
    return store_->find_stability("s", id + ":3", 1100).has_value();
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
