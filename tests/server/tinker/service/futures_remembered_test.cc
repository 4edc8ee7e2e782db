// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "server/tinker/service/futures.h"

namespace strata::server {
namespace {

// One that came and was answered.
void answer(IdempotencyTable& remembered, const std::string& tenant, const std::string& of,
            int64_t number, const std::string& request = "r") {
  remembered.add({of, number}, {.request = request});
  remembered.mark_answered(tenant, {of, number}, request);
}

TEST(IdempotencyTable, KnowsWhatCameUntilItIsForgotten) {
  SharedLimit bytes(1 << 20);
  IdempotencyTable remembered(bytes);
  answer(remembered, "a", "model", 7, "r7");
  remembered.add({"sampler", 7}, {.fingerprint = 2, .request = "s7", .num_samples = 3});
  remembered.mark_answered("a", {"sampler", 7}, "s7");
  ASSERT_NE(remembered.find({"model", 7}), nullptr);
  EXPECT_EQ(remembered.find({"model", 7})->request, "r7");
  EXPECT_EQ(remembered.find({"sampler", 7})->num_samples, 3);
  EXPECT_EQ(remembered.find({"model", 8}), nullptr);
  EXPECT_EQ(remembered.forget("model"), 1);
  EXPECT_EQ(remembered.find({"model", 7}), nullptr);
  EXPECT_NE(remembered.find({"sampler", 7}), nullptr);
  EXPECT_EQ(remembered.forget("sampler"), 1);
  EXPECT_EQ(bytes.used(), 0);
}

TEST(IdempotencyTable, TheOldestOfTheSameThingMakeRoom) {
  SharedLimit bytes(8192);
  IdempotencyTable remembered(bytes);
  for (int64_t i = 1; i <= 1000; ++i) answer(remembered, "a", "model", i);
  EXPECT_LE(bytes.used(), 8192);
  EXPECT_EQ(remembered.find({"model", 1}), nullptr);
  EXPECT_NE(remembered.find({"model", 990}), nullptr);
  EXPECT_NE(remembered.find({"model", 1000}), nullptr);
}

TEST(IdempotencyTable, WhoFillsItTakesNothingFromOthers) {
  SharedLimit bytes(100'000);
  bytes.set_num_tenants(2);
  IdempotencyTable remembered(bytes);
  for (int i = 0; i < 1000; ++i) answer(remembered, "a", "sampler" + std::to_string(i), 1);
  EXPECT_EQ(remembered.find({"sampler999", 1}), nullptr);  // no space, and no older one of its own
  for (int64_t i = 1; i <= 20; ++i) answer(remembered, "b", "model", i);
  EXPECT_NE(remembered.find({"model", 1}), nullptr);
  EXPECT_LE(bytes.used(), 100'000);
}

// Whatever comes and goes meanwhile, and with space for none of them.
TEST(IdempotencyTable, WhatWaitsIsKnown) {
  SharedLimit bytes(1);
  IdempotencyTable remembered(bytes);
  remembered.add({"model", 1}, {.request = "first"});
  for (int64_t i = 2; i <= 10'000; ++i) answer(remembered, "a", "model", i);
  EXPECT_EQ(remembered.find({"model", 2}), nullptr);
  ASSERT_NE(remembered.find({"model", 1}), nullptr);
  remembered.mark_answered("a", {"model", 1}, "another");
  EXPECT_NE(remembered.find({"model", 1}), nullptr);
  remembered.mark_answered("a", {"model", 1}, "first");
  EXPECT_EQ(remembered.find({"model", 1}), nullptr);
  EXPECT_EQ(remembered.forget("model"), 0);
  EXPECT_EQ(bytes.used(), 0);
}

TEST(IdempotencyTable, TheMakingOfAModelIsKnownAsLongAsTheModel) {
  SharedLimit bytes(8192);
  IdempotencyTable remembered(bytes);
  answer(remembered, "a", "model", IdempotencyTable::kMaking, "made");
  for (int64_t i = 1; i <= 10'000; ++i) answer(remembered, "a", "model", i);
  ASSERT_NE(remembered.find({"model", IdempotencyTable::kMaking}), nullptr);
  EXPECT_EQ(remembered.find({"model", IdempotencyTable::kMaking})->request, "made");
  EXPECT_GT(remembered.forget("model"), 1);
  EXPECT_EQ(bytes.used(), 0);
}

}  // namespace
}  // namespace strata::server
