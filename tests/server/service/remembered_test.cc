// SPDX-License-Identifier: Apache-2.0
#include "server/service/remembered.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

TEST(Remembered, KnowsWhatCameUntilItIsForgotten) {
  SharedLimit bytes(1 << 20);
  Remembered remembered(bytes);
  remembered.add("a", "model", 7, {.fingerprint = 1, .request = "r7"});
  remembered.add("a", "sampler", 7, {.fingerprint = 2, .request = "s7", .num_samples = 3});
  ASSERT_NE(remembered.find("model", 7), nullptr);
  EXPECT_EQ(remembered.find("model", 7)->request, "r7");
  EXPECT_EQ(remembered.find("sampler", 7)->num_samples, 3);
  EXPECT_EQ(remembered.find("model", 8), nullptr);
  remembered.forget("model");
  EXPECT_EQ(remembered.find("model", 7), nullptr);
  EXPECT_NE(remembered.find("sampler", 7), nullptr);
  remembered.forget("sampler");
  EXPECT_EQ(bytes.used(), 0);
}

TEST(Remembered, TheOldestOfTheSameThingMakeRoom) {
  SharedLimit bytes(8192);
  Remembered remembered(bytes);
  for (int64_t i = 1; i <= 1000; ++i) remembered.add("a", "model", i, {.request = "r"});
  EXPECT_LE(bytes.used(), 8192);
  EXPECT_EQ(remembered.find("model", 1), nullptr);
  EXPECT_NE(remembered.find("model", 990), nullptr);
  EXPECT_NE(remembered.find("model", 1000), nullptr);
}

TEST(Remembered, WhoFillsItTakesNothingFromOthers) {
  SharedLimit bytes(100'000);
  bytes.set_num_tenants(2);
  Remembered remembered(bytes);
  for (int i = 0; i < 1000; ++i)
    remembered.add("a", "sampler" + std::to_string(i), 1, {.request = "r"});
  EXPECT_EQ(remembered.find("sampler999", 1), nullptr);  // no space, and no older one of its own
  for (int64_t i = 1; i <= 20; ++i) remembered.add("b", "model", i, {.request = "r"});
  EXPECT_NE(remembered.find("model", 1), nullptr);
  EXPECT_LE(bytes.used(), 100'000);
}

}  // namespace
}  // namespace strata::server
