// SPDX-License-Identifier: Apache-2.0
// What the service keeps of what is alive: sessions, models and sampling sessions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/tinker/service/model_table.h"
#include "server/tinker/service/sampler_table.h"
#include "server/tinker/service/session_table.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  EXPECT_THAT(table.find_silent(20, 5, 9), ElementsAre("b", "c"));
  table.excuse(20, 4);  // a stays at 19, not in the future
  EXPECT_THAT(table.find_silent(20, 5, 9), ElementsAre("b", "c"));
  table.excuse(20, 4);
  EXPECT_THAT(table.find_silent(20, 5, 9), IsEmpty());
  EXPECT_THAT(table.find_silent(25.5, 5, 9), ElementsAre("a", "b", "c"));
  EXPECT_EQ(table.find_silent(25.5, 5, 2).size(), 2u);
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

TEST(SamplerTable, CountsASessionsAndCrowdsOutTheOldestEphemeralOne) {
  SamplerTable table(/*max_ephemerals=*/2, SharedLimit(1 << 20));
  const auto id = [](int64_t number) { return SamplerTable::id_of("s", number); };
  const auto add = [&](const std::string& of, const std::string& session, bool is_ephemeral) {
    return table.add(of, sampler_of(session, is_ephemeral));
  };
  EXPECT_FALSE(table.has_any("s"));
  EXPECT_EQ(add(id(0), "s", false).replaced, nullptr);
  EXPECT_TRUE(table.has_any("s"));
  EXPECT_EQ(add(id(1), "s", true).crowded_out, std::nullopt);
  EXPECT_EQ(add(id(2), "s", true).crowded_out, std::nullopt);
  // The same again is the youngest, and nothing is too many.
  const SamplerTable::Added again = add(id(1), "s", true);
  EXPECT_NE(again.replaced, nullptr);
  EXPECT_EQ(again.crowded_out, std::nullopt);
  const SamplerTable::Added fourth = add(id(3), "s", true);
  EXPECT_EQ(fourth.crowded_out, id(2));
  EXPECT_TRUE(fourth.evicted_row->is_ephemeral);
  EXPECT_EQ(table.touch_sampler(id(2), "one"), nullptr);
  EXPECT_EQ(table.count_of("s"), 2);
  EXPECT_EQ(table.count_of("nobody's"), 0);
  table.set_stored("s", 5);
  table.count_stored("s");
  EXPECT_EQ(table.count_of("s"), 8);  // with two that the store's number leaves out
  // Another session has its own.
  EXPECT_EQ(add(SamplerTable::id_of("t", 1), "t", true).crowded_out, std::nullopt);
  EXPECT_THAT(table.of_session("s", 9), ElementsAre(id(0), id(1), id(3)));
  EXPECT_THAT(table.of_session("s", 2), ElementsAre(id(0), id(1)));
  EXPECT_EQ(table.touch_sampler(id(0), "two"), nullptr);
  table.end_session("s");
  EXPECT_EQ(table.touch_sampler(id(0), "one"), nullptr);
  EXPECT_FALSE(table.contains(id(0)));
  EXPECT_FALSE(table.has_any("s"));
  for (const std::string& each : table.of_session("s", 9)) table.take(each);
  EXPECT_THAT(table.of_session("s", 9), IsEmpty());
}

// One that is kept under the name of an ephemeral one is none.
TEST(SamplerTable, WhatIsReplacedByAKeptOneIsNoLongerEphemeral) {
  SamplerTable table(/*max_ephemerals=*/1, SharedLimit(1 << 20));
  table.add("s:sample:0", sampler_of("s", true));
  table.add("s:sample:0", sampler_of("s", false));
  EXPECT_EQ(table.add("s:sample:1", sampler_of("s", true)).crowded_out, std::nullopt);
}

TEST(SamplerTable, WhatWasNotUsedForLongestMakesWayButNoEphemeralOne) {
  SharedLimit bytes(2000);
  SamplerTable table(/*max_ephemerals=*/9, bytes);
  table.add("s:sample:0", sampler_of("s", false));
  table.add("s:sample:1", sampler_of("s", false));
  table.add("s:sample:2", sampler_of("s", false));
  EXPECT_NE(table.touch_sampler("s:sample:0", "one"), nullptr);
  table.add("s:sample:3", sampler_of("s", false));
  EXPECT_TRUE(table.contains("s:sample:0"));
  EXPECT_FALSE(table.contains("s:sample:1"));
  for (int i = 4; i < 7; ++i) {
    const std::string id = SamplerTable::id_of("s", i);
    EXPECT_FALSE(table.would_evict(id, "s"));
    SharedLimit::Share share = table.take_bytes_dropping_idle(id, sampler_of("s", true));
    ASSERT_TRUE(share);
    table.add(id, sampler_of("s", true), std::move(share));
  }
  EXPECT_THAT(table.of_session("s", 9), ElementsAre("s:sample:4", "s:sample:5", "s:sample:6"));
  EXPECT_FALSE(table.take_bytes_dropping_idle("s:sample:7", sampler_of("s", true)));
  EXPECT_TRUE(table.would_evict("s:sample:4", "s"));
  table.add("s:sample:4", sampler_of("s", true));  // with the bytes of the one before
  // One without bytes has no row, and works all the same.
  EXPECT_EQ(table.add("s:sample:8", sampler_of("s", false)).row->session, "s");
  EXPECT_FALSE(table.contains("s:sample:8"));
  EXPECT_TRUE(table.contains("s:sample:5"));
  table.end_session("s");
  for (const std::string& each : table.of_session("s", 9)) table.take(each);
  EXPECT_EQ(bytes.used(), 0);
}

}  // namespace
}  // namespace strata::server
