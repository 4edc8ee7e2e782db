// SPDX-License-Identifier: Apache-2.0
// Limits by themselves, and where the service holds requests, passes, samples and saves against
// them.
#include "server/tinker/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kRequests = UsageKind::kRequests;
constexpr auto kTrained = UsageKind::kTrainedTokens;
constexpr auto kSampled = UsageKind::kSampledTokens;

std::vector<UsageLimit> rates(const std::vector<std::string>& texts) {
  std::vector<UsageLimit> out;
  for (const std::string& text : texts) out.push_back(parse_rate("rate", text));
  return out;
}
std::vector<UsageLimit> quotas(const std::vector<std::string>& texts) {
  std::vector<UsageLimit> out;
  for (const std::string& text : texts) out.push_back(parse_quota("quota", text));
  return out;
}

std::string header(const Response& response, const std::string& name) {
  for (const Header& header : response.headers) {
    if (header.name == name) return header.value;
  }
  return "";
}

// Of a database that somebody else wrote: sums end at the end of their type.
TEST(Usage, SumsDoNotWrap) {
  std::vector<UsageRow> known;
  for (const char* key : {"a", "b", "c"})
    known.push_back({"alice", key, {std::numeric_limits<int64_t>::max() - 5, 0, 0, 0}});
  Usage usage({}, quotas({"alice:requests=1000000"}), known);
  EXPECT_TRUE(usage.refuse_over_limit("alice", kRequests, 1, 100.0).has_value());
  usage.charge("alice", "a", kRequests, 10, 100.0);
  EXPECT_TRUE(usage.refuse_over_limit("alice", kRequests, 1, 100.0).has_value());
  EXPECT_EQ(usage.total(kRequests), std::numeric_limits<int64_t>::max());
  for (const UsageRow& row : usage.rows("alice")) EXPECT_GT(row.counts[0], 0) << row.key_id;
}

TEST(Usage, ARateHoldsTenSecondsWorthAndFillsAgain) {
  Usage usage(rates({"alice:requests=2/s"}), {}, {});
  int passed = 0;
  const auto ask = [&](double now) {
    const auto refused = usage.refuse_over_limit("alice", kRequests, 1, now);
    if (!refused) usage.charge("alice", "k", kRequests, 1, now);
    passed += refused ? 0 : 1;
    return refused;
  };
  std::optional<Response> refused;
  for (int i = 0; i < 40 && !refused; ++i) refused = ask(100.0);
  EXPECT_EQ(passed, 20);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(header(*refused, "retry-after"), "1");
  EXPECT_THAT(refused->body, HasSubstr("tenant 'alice'"));
  EXPECT_THAT(refused->body, HasSubstr("--rate alice:requests=2/s"));
  for (int i = 0; i < 10; ++i) (void)ask(101.0);
  EXPECT_EQ(passed, 22);
  for (int i = 0; i < 100; ++i) (void)ask(1000.0);
  EXPECT_EQ(passed, 42) << "a bucket holds no more than ten seconds";
  EXPECT_FALSE(usage.refuse_over_limit("bob", kRequests, 1, 100.0).has_value());
  EXPECT_EQ(usage.refused()[0].by_rate, 1 + 8 + 80);
}

// What is larger than the bucket passes, and is paid for by the wait after it.
TEST(Usage, ALargeAmountPassesAndIsPaidFor) {
  Usage usage(rates({"*:trained-tokens=10/s"}), {}, {});
  EXPECT_FALSE(usage.refuse_over_limit("alice", kTrained, 500, 0.0).has_value());
  usage.charge("alice", "k", kTrained, 500, 0.0);
  EXPECT_EQ(header(*usage.refuse_over_limit("alice", kTrained, 1, 0.0), "retry-after"), "41");
  EXPECT_TRUE(usage.refuse_over_limit("alice", kTrained, 1, 40.0).has_value());
  EXPECT_FALSE(usage.refuse_over_limit("alice", kTrained, 1, 40.2).has_value());
  EXPECT_TRUE(usage.refuse_over_limit("alice", kTrained, 500, 40.2).has_value())
      << "not while it is low";
  EXPECT_FALSE(usage.refuse_over_limit("bob", kTrained, 1, 0.0).has_value())
      << "* is each by itself";
}

// Many at once cannot yield more than the bucket holds; what they do not yield comes back.
TEST(Usage, ARateHoldsForWhatIsUnderWay) {
  Usage usage(rates({"*:sampled-tokens=50/s"}), {}, {});
  std::vector<std::shared_ptr<void>> held;
  for (int i = 0; i < 100; ++i) {
    if (!usage.refuse_over_limit("alice", kSampled, 200, 0.0))
      held.push_back(usage.reserve("alice", kSampled, 200));
  }
  EXPECT_EQ(held.size(), 2U);
  EXPECT_THAT(usage.refuse_over_limit("alice", kSampled, 200, 0.0)->body,
              HasSubstr("may yield 400"));
  held.pop_back();
  usage.charge("alice", "k", kSampled, 20, 0.0);
  EXPECT_FALSE(usage.refuse_over_limit("alice", kSampled, 200, 0.0).has_value());
  held.clear();
  usage.charge("alice", "k", kSampled, 25000, 0.0);
  EXPECT_EQ(header(*usage.refuse_over_limit("alice", kSampled, 10, 0.0), "retry-after"), "491");
}

TEST(Usage, AQuotaIsNeverExceededAlsoByWhatIsUnderWay) {
  Usage usage({}, quotas({"*:sampled-tokens=100", "bob:sampled-tokens=10"}),
              {{"alice", "old", {0, 0, 30}}});
  EXPECT_TRUE(usage.refuse_over_limit("bob", kSampled, 11, 0.0).has_value())
      << "its own line, not the star";
  EXPECT_FALSE(usage.refuse_over_limit("alice", kSampled, 70, 0.0).has_value());
  std::shared_ptr<void> held = usage.reserve("alice", kSampled, 60);
  const auto refused = usage.refuse_over_limit("alice", kSampled, 11, 0.0);
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->body, HasSubstr("--quota *:sampled-tokens=100"));
  EXPECT_THAT(refused->body, HasSubstr("30 are used, 60 more are held"));
  EXPECT_EQ(header(*refused, "retry-after"), "60");
  held.reset();
  usage.charge("alice", "new", kSampled, 5, 0.0);
  EXPECT_FALSE(usage.refuse_over_limit("alice", kSampled, 65, 0.0).has_value());
  EXPECT_TRUE(usage.refuse_over_limit("alice", kSampled, 66, 0.0).has_value());
  EXPECT_EQ(usage.total(kSampled), 35);
}

TEST(Usage, RowsChangeUntilTheyAreWritten) {
  Usage usage({}, {}, {{"alice", "a", {1, 2, 3}}});
  EXPECT_TRUE(usage.changed_rows().empty());
  usage.charge("alice", "a", kRequests, 1, 0.0);
  usage.charge("bob", "b", kTrained, 7, 0.0);
  const std::vector<UsageRow> changed = usage.changed_rows();
  EXPECT_THAT(changed,
              ElementsAre(UsageRow{"alice", "a", {2, 2, 3}}, UsageRow{"bob", "b", {0, 7, 0}}));
  usage.charge("bob", "b", kTrained, 1, 0.0);  // while they are being written
  usage.note_written(changed);
  EXPECT_THAT(usage.changed_rows(), ElementsAre(UsageRow{"bob", "b", {0, 8, 0}}));
  EXPECT_THAT(usage.rows("alice"), ElementsAre(UsageRow{"alice", "a", {2, 2, 3}}));
}

std::string pass(const std::string& model, int seq_id) {
  return R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(seq_id) +
         R"(,"forward_backward_input":{"loss_fn":"cross_entropy","data":[{"model_input":{"chunks":[
         {"type":"encoded_text","tokens":[1,2,3,4]}]},"loss_fn_inputs":{
         "target_tokens":{"data":[1,2,3,4],"dtype":"int64"},
         "weights":{"data":[1,1,1,1],"dtype":"float32"}}}]}})";
}

TEST(Usage, PassesAreHeldAgainstTheirTenantsTokens) {
  House house({}, {}, {}, quotas({"alice:trained-tokens=10"}));
  const std::string model = house.model(house.session());
  EXPECT_EQ(house.post("forward_backward", pass(model, 1)).status, 200);
  EXPECT_EQ(house.post("forward_backward", pass(model, 2)).status, 200);
  const size_t submitted = house.submitted.size();
  const Response refused = house.post("forward_backward", pass(model, 3));
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("--quota alice:trained-tokens=10"));
  EXPECT_NE(header(refused, "retry-after"), "");
  EXPECT_EQ(house.submitted.size(), submitted);
  EXPECT_EQ(house.post("forward_backward", pass(model, 2)).status, 200)
      << "an accepted one that is sent again takes nothing";
  EXPECT_EQ(house.usage().total(kTrained), 8);
  const std::string of_bob = house.model(house.session("bob"), 0, "tiny", "bob");
  for (int i = 1; i < 5; ++i)
    EXPECT_EQ(house.post("forward_backward", pass(of_bob, i), "bob").status, 200);
}

TEST(Usage, SamplesHoldTheirMostUntilTheyAreDone) {
  House house({}, {}, {}, quotas({"*:sampled-tokens=20"}));
  const std::string session = house.session();
  const std::string sampler =
      House::text(house.post("create_sampling_session",
                             R"({"session_id":")" + session +
                                 R"(","sampling_session_seq_id":0,"base_model":"tiny"})"),
                  "sampling_session_id");
  const auto sample = [&](int seq_id) {
    return house.post("asample", R"({"sampling_session_id":")" + sampler + R"(","seq_id":)" +
                                     std::to_string(seq_id) +
                                     R"(,"num_samples":2,"prompt":{"chunks":[{"type":"encoded_text",
        "tokens":[1]}]},"sampling_params":{"max_tokens":8}})");
  };
  const Response first = sample(1);
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(sample(2).status, 429);
  api::SampleOutput output;
  output.sequences.resize(2);
  output.sequences[0].tokens = {1, 2};
  output.sequences[0].logprobs = {0, 0};
  house.settle(House::text(first, "request_id"), output);
  EXPECT_EQ(house.usage().total(kSampled), 2);
  const Response second = sample(2);
  EXPECT_EQ(second.status, 200);
  house.settle(House::text(second, "request_id"), api::Failure{});
  EXPECT_EQ(sample(3).status, 200) << "a failed sample gives back what it held";
}

TEST(Usage, PromptsOfSamplesAreCountedWhenTheyAreAccepted) {
  House house({}, {}, rates({"bob:prompt-tokens=1/s"}), quotas({"alice:prompt-tokens=10"}));
  const auto sample = [&](const std::string& tenant, int count) {
    const std::string session = house.session(tenant);
    std::string tokens = "1";
    for (int i = 1; i < count; ++i) tokens += ",1";
    const std::string sampler =
        House::text(house.post("create_sampling_session",
                               R"({"session_id":")" + session +
                                   R"(","sampling_session_seq_id":0,"base_model":"tiny"})",
                               tenant),
                    "sampling_session_id");
    return house.post("asample",
                      R"({"sampling_session_id":")" + sampler +
                          R"(","seq_id":1,"num_samples":3,"prompt":{"chunks":[{"type":)"
                          R"("encoded_text","tokens":[)" +
                          tokens + R"(]}]},"sampling_params":{"max_tokens":1}})",
                      tenant);
  };
  EXPECT_EQ(sample("alice", 6).status, 200);
  EXPECT_EQ(house.usage().total(UsageKind::kPromptTokens), 6) << "once for three samples";
  const Response refused = sample("alice", 5);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("--quota alice:prompt-tokens=10"));
  EXPECT_EQ(sample("alice", 4).status, 200);
  EXPECT_EQ(sample("bob", 10).status, 200);
  EXPECT_THAT(sample("bob", 1).body, HasSubstr("--rate bob:prompt-tokens=1/s"));
  EXPECT_EQ(house.usage().total(UsageKind::kPromptTokens), 20);
}

TEST(Usage, SavesAreHeldAgainstTheDisk) {
  House house({}, {}, {}, quotas({"alice:disk-bytes=4000"}));
  const std::string model = house.model(house.session());
  const auto save = [&](const char* path, const char* name, int seq_id) {
    return house.post(path, R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(seq_id) +
                                R"(,"path":")" + name + "\"}");
  };
  const Response first = save("save_weights", "a", 1);  // 3,000 bytes are reserved
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(save("save_weights_for_sampler", "b", 2).status, 200);
  const Response refused = save("save_weights_for_sampler", "c", 3);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("delete checkpoints"));
  EXPECT_THAT(refused.body, HasSubstr("--quota alice:disk-bytes=4000"));
  house.settle(House::text(first, "request_id"), api::Failure{});
  EXPECT_EQ(save("save_weights_for_sampler", "c", 3).status, 200);
}

TEST(Usage, EachTenantSeesItsKeysAndLimitsAndWhatWasKeptIsThereAgain) {
  House house({}, {}, rates({"*:requests=0.1/s"}), {});
  Request request;
  request.tenant = "alice";
  request.key_id = "k1";
  const Route read{.method = "GET", .pattern = "x", .handler = {}, .effect = Effect::kReads};
  const Route poll{.method = "POST", .pattern = "x", .handler = {}, .effect = Effect::kUpkeep};
  request.route = &read;
  EXPECT_FALSE(house.service().charge_request(request).has_value());
  request.route = nullptr;
  EXPECT_TRUE(house.service().charge_request(request).has_value());
  request.route = &poll;
  EXPECT_FALSE(house.service().charge_request(request).has_value()) << "polls never wait";
  const Response shown = house.call("GET", "usage");
  EXPECT_EQ(shown.status, 200);
  EXPECT_EQ(shown.body,
            R"({"tenants":[{"tenant":"alice","disk_bytes":0,"keys":[{"key":"k1","requests":1,)"
            R"("trained_tokens":0,"sampled_tokens":0,"prompt_tokens":0}],)"
            R"("limits":["--rate *:requests=0.1/s"]}]})");
  EXPECT_EQ(house.call("GET", "usage", "", "bob").body, R"({"tenants":[]})");
  house.faults().away = true;
  EXPECT_ANY_THROW(house.service().write_changed_usage());
  house.faults().away = false;
  house.service().write_changed_usage();
  EXPECT_THAT(house.store().read_usage_rows(), ElementsAre(UsageRow{"alice", "k1", {1, 0, 0}}));
  EXPECT_TRUE(house.usage().changed_rows().empty());
}

}  // namespace
}  // namespace strata::server
