// SPDX-License-Identifier: Apache-2.0
// What the service keeps of what is alive: sessions, models and sampling sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/service/model_table.h"
#include "server/service/sampler_table.h"
#include "server/service/session_table.h"

namespace strata::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SessionTable, KnowsTenantsAndSignsOfLife) {
  SessionTable table;
  table.add("a", "one", 10);
  table.add("b", "one", 10);
  table.add("c", "two", 10);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.count_of("one"), 2);
  EXPECT_EQ(table.count_of("nobody"), 0);
  EXPECT_TRUE(table.contains("a", "one"));
  EXPECT_FALSE(table.contains("a", "two"));
  EXPECT_TRUE(table.touch("a", "one", 15));
  EXPECT_FALSE(table.touch("b", "two", 15));  // which is no sign of life of b
  EXPECT_THAT(table.silent(20, 5, 9), ElementsAre("b", "c"));
  table.excuse(20, 4);  // a stays at 19, not in the future
  EXPECT_THAT(table.silent(20, 5, 9), ElementsAre("b", "c"));
  table.excuse(20, 4);
  EXPECT_THAT(table.silent(20, 5, 9), IsEmpty());
  EXPECT_THAT(table.silent(25.5, 5, 9), ElementsAre("a", "b", "c"));
  EXPECT_EQ(table.silent(25.5, 5, 2).size(), 2u);
  table.remove("b");
  EXPECT_FALSE(table.contains("b"));
  EXPECT_EQ(table.count_of("one"), 1);
}

TEST(ModelTable, FindsByTenantAndSession) {
  ModelTable table;
  const std::string first = ModelTable::id_of("s", 0), second = ModelTable::id_of("s", 10);
  const std::string other = ModelTable::id_of("s2", 0);
  for (const std::string& id : {first, second, other}) {
    table.add(id, {.tenant = "one", .session = "s", .base_name = "b", .lora = {}});
  }
  EXPECT_THAT(table.of_session("s"), ElementsAre(first, second));
  EXPECT_THAT(table.of_session("s2"), ElementsAre(other));
  EXPECT_THAT(table.of_session(""), IsEmpty());
  ASSERT_NE(table.find(first, "one"), nullptr);
  EXPECT_EQ(table.find(first, "two"), nullptr);
  table.remove(first);
  EXPECT_EQ(table.find(first, "one"), nullptr);
  EXPECT_THAT(table.of_session("s"), ElementsAre(second));
}

LiveSampler sampler_of(const std::string& session, bool is_ephemeral) {
  LiveSampler sampler;
  sampler.tenant = "one";
  sampler.session = session;
  sampler.is_ephemeral = is_ephemeral;
  return sampler;
}

TEST(SamplerTable, CountsASessionsAndNamesTheEphemeralOneTooMany) {
  SamplerTable table(/*max_ephemerals=*/2);
  const auto id = [](int64_t number) { return SamplerTable::id_of("s", number); };
  EXPECT_TRUE(table.add(id(0), sampler_of("s", false)).is_new);
  EXPECT_EQ(table.add(id(1), sampler_of("s", true)).one_too_many, std::nullopt);
  EXPECT_EQ(table.add(id(2), sampler_of("s", true)).one_too_many, std::nullopt);
  // The same again is the youngest, and nothing is too many.
  const SamplerTable::Added again = table.add(id(1), sampler_of("s", true));
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(again.one_too_many, std::nullopt);
  EXPECT_EQ(table.count_of("s"), 3);
  EXPECT_EQ(table.add(id(3), sampler_of("s", true)).one_too_many, id(2));
  EXPECT_EQ(table.count_of("s"), 4);
  EXPECT_TRUE(table.take(id(2)).is_ephemeral);
  EXPECT_EQ(table.find(id(2), "one"), nullptr);
  EXPECT_EQ(table.count_of("s"), 3);
  // Another session has its own.
  EXPECT_EQ(table.add(SamplerTable::id_of("t", 1), sampler_of("t", true)).one_too_many,
            std::nullopt);
  EXPECT_THAT(table.of_session("s"), ElementsAre(id(0), id(1), id(3)));
  EXPECT_EQ(table.find(id(0), "two"), nullptr);
  for (const std::string& each : table.of_session("s")) table.take(each);
  EXPECT_EQ(table.count_of("s"), 0);
  EXPECT_EQ(table.count_of("t"), 1);
}

// One that is kept under the name of an ephemeral one is none.
TEST(SamplerTable, WhatIsReplacedByAKeptOneIsNoLongerEphemeral) {
  SamplerTable table(/*max_ephemerals=*/1);
  table.add("s:sample:0", sampler_of("s", true));
  table.add("s:sample:0", sampler_of("s", false));
  EXPECT_EQ(table.add("s:sample:1", sampler_of("s", true)).one_too_many, std::nullopt);
}

}  // namespace
}  // namespace strata::server
