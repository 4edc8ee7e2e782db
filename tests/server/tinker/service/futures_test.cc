// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/futures.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/base/heap_limit.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct FuturesTest : ::testing::Test {
  api::RequestId begin(const std::string& tenant) {
    const api::RequestId id = futures.new_id(tenant, FutureKind::kSample);
    futures.add(id, futures.open(tenant));
    return id;
  }
  // Of `size` bytes, never delivered unless polled.
  api::RequestId finish(const std::string& tenant, size_t size, double now = 0) {
    const api::RequestId id = begin(tenant);
    futures.complete(id, json_response(200, std::string(size, 'x')), now);
    return id;
  }
  void poll(const std::string& tenant, const api::RequestId& id, double now = 0) {
    futures.poll(
        tenant, id.text,
        [this](Response response) {
          statuses.push_back(response.status);
          answers.push_back(std::move(response));
        },
        now);
  }
  static Accounts small_accounts() {
    Accounts accounts;
    accounts.of(Use::kPoll) = SharedLimit(8);
    accounts.of(Use::kResult) = SharedLimit(100'000);
    return accounts;
  }
  // So much is held for a result until the charge ends.
  [[nodiscard]] bool hold(Charge& charge, int64_t size) {
    return futures.hold_dropping_delivered(charge, size);
  }
  Accounts accounts = small_accounts();
  SharedLimit& parked = accounts.of(Use::kPoll);
  SharedLimit& results = accounts.of(Use::kResult);
  Futures futures{{.secret = std::string(32, 's'), .accounts = accounts}};
  std::vector<int> statuses;
  std::vector<Response> answers;
};

TEST_F(FuturesTest, PollsOfAResultShareItsBytes) {
  const api::RequestId id = begin("a");
  poll("a", id);
  poll("a", id);
  futures.complete(id, json_response(200, std::string(1000, 'x')), 0);
  poll("a", id);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].bytes(), std::string(1000, 'x'));
  EXPECT_EQ(&answers[0].bytes(), &answers[1].bytes());
  EXPECT_EQ(&answers[0].bytes(), &answers[2].bytes());
}

TEST_F(FuturesTest, AResultThatMemoryLacksForFailsItsRequest) {
  if (!strata::testing::lacks_memory(0, [&] { static_cast<void>(begin("a")); }))
    GTEST_SKIP() << "operator new is the sanitizers'";
  for (int64_t allocations = 0;; ++allocations) {
    const api::RequestId id = begin("a");
    Response response = json_response(200, std::string(1000, 'x'));
    if (!strata::testing::lacks_memory(
            allocations, [&] { futures.complete(id, std::move(response), /*now=*/0); })) {
      EXPECT_GT(allocations, 1);
      break;
    }
    EXPECT_EQ(futures.num_pending(), 1u);
    futures.fail(id, api::FaultCategory::kServer, "no memory", 0);
    EXPECT_EQ(futures.num_pending(), 0u);
    poll("a", id);
    ASSERT_THAT(answers.back().bytes(), HasSubstr("no memory")) << allocations;
  }
}

// However small results are, dropping those that were delivered takes no request long.
TEST_F(FuturesTest, AFewThousandResultsAreKeptAfterTheirDelivery) {
  results = SharedLimit(1LL << 30);
  Futures kept{{.secret = std::string(32, 's'), .accounts = accounts}};
  std::vector<std::string> ids;
  std::map<int, int> told;
  const auto poll_kept = [&](const std::string& id) {
    kept.poll("a", id, [&](const Response& response) { ++told[response.status]; }, 0);
  };
  for (int i = 0; i < 9000; ++i) {
    const api::RequestId id = kept.new_id("a", FutureKind::kSample);
    kept.add(id, kept.open("a"));
    if (i % 2 == 0) poll_kept(id.text);  // it waits
    kept.complete(id, json_response(200, "x"), i);
    if (i % 2 != 0) poll_kept(id.text);
    ids.push_back(id.text);
  }
  EXPECT_THAT(told, ElementsAre(::testing::Pair(200, 9000)));
  for (const std::string& id : ids) poll_kept(id);
  EXPECT_THAT(told,
              ElementsAre(::testing::Pair(200, 9000 + 8192), ::testing::Pair(410, 9000 - 8192)));
}

// Five honest pollers of one future wait; none is told to come again at once.
TEST_F(FuturesTest, PollsOfOneFutureWaitAsLongAsTheTenantHasRoom) {
  const api::RequestId id = begin("a");
  for (int i = 0; i < 8; ++i) poll("a", id);
  EXPECT_TRUE(statuses.empty());
  for (int i = 0; i < 2; ++i) poll("a", id, 1.5);
  EXPECT_THAT(statuses, ElementsAre(408, 408));
  EXPECT_EQ(futures.num_parked(), 8);
  futures.expire_polls_and_results(31.5);
  EXPECT_EQ(futures.num_parked(), 0);
  EXPECT_EQ(statuses.size(), 10u);
}

// More pollers than there is space for: none is answered soon and then takes the next one's place.
TEST_F(FuturesTest, PollersOfOneFutureDoNotSpin) {
  const api::RequestId id = begin("a");
  for (int i = 0; i < 8; ++i) poll("a", id, 0.0);
  for (int i = 0; i < 90; ++i) poll("a", id, 0.01 * i);
  EXPECT_THAT(statuses, ::testing::Each(429));
  EXPECT_EQ(futures.num_parked(), 8);
}

// Whose client has gone gives its place back, once, and no other's.
TEST_F(FuturesTest, APollThatIsLeftGivesItsPlaceBack) {
  const api::RequestId id = begin("a");
  const auto hold = [&](double now) {
    return futures.poll("a", id.text, [this](Response r) { statuses.push_back(r.status); }, now);
  };
  std::vector<uint64_t> held;
  for (int i = 0; i < 8; ++i) held.push_back(hold(0));
  EXPECT_THAT(held, ::testing::Each(::testing::Gt(0u)));
  EXPECT_EQ(hold(0), 0u);
  EXPECT_THAT(statuses, ElementsAre(429));
  futures.cancel_poll(id.text, held[3]);
  futures.cancel_poll(id.text, held[3]);
  EXPECT_THAT(statuses, ElementsAre(429, 408));
  EXPECT_EQ(futures.num_parked(), 7);
  EXPECT_EQ(parked.used("a"), 7);
  EXPECT_GT(hold(10), 0u);
  futures.expire_polls_and_results(30);  // those of the beginning
  EXPECT_EQ(futures.num_parked(), 1);
  futures.complete(id, json_response(200, "x"), 31);
  EXPECT_EQ(statuses.back(), 200);
  EXPECT_EQ(futures.num_parked(), 0);
  EXPECT_EQ(parked.used("a"), 0);
  futures.cancel_poll(id.text, held[0]);
}

TEST_F(FuturesTest, ATenantThatParksAllItCanLeavesOthersTheirPart) {
  parked.set_num_tenants(2);
  for (int i = 0; i < 8; ++i) poll("a", begin("a"));
  EXPECT_THAT(statuses, ElementsAre(429, 429));
  EXPECT_THAT(answers[0].bytes(), HasSubstr("--max-parked 8"));
  poll("b", begin("b"));
  poll("b", begin("b"));
  EXPECT_EQ(futures.num_parked(), 8);
}

TEST_F(FuturesTest, DeliveredResultsMakeRoomAndUnreadOnesDoNot) {
  const api::RequestId read = finish("a", 40'000, 1);
  poll("a", read);
  answers.clear();  // written
  const api::RequestId unread = finish("a", 50'000, 2);
  const api::RequestId late = finish("a", 40'000, 3);
  poll("a", read);
  poll("a", unread);
  poll("a", late);
  EXPECT_THAT(statuses, ElementsAre(200, 410, 200, 200));
  EXPECT_THAT(answers[0].bytes(), HasSubstr("--max-result-bytes"));
  EXPECT_EQ(answers[2].bytes().size(), 40'000u);
}

// Nothing is dropped that was computed: what is more than was held for it is kept as well.
TEST_F(FuturesTest, AResultIsKeptWhateverOthersHold) {
  Charge all = futures.open("b");
  ASSERT_TRUE(hold(all, 100'000));
  const api::RequestId id = finish("a", 50'000);
  poll("a", id);
  EXPECT_EQ(answers.back().bytes().size(), 50'000u);
  EXPECT_GT(results.used("a"), 50'000) << "and counts";
  Charge more = futures.open("a");
  EXPECT_FALSE(hold(more, 1)) << "it adds nothing before some was fetched";
  all.release_all();
  EXPECT_TRUE(hold(more, 1));
}

TEST_F(FuturesTest, APromisedResultCountsWhileItIsPending) {
  const api::RequestId id = futures.new_id("a", FutureKind::kSample);
  Charge charge = futures.open("a"), other = futures.open("a");
  ASSERT_TRUE(hold(charge, 60'000));
  futures.add(id, std::move(charge));
  EXPECT_EQ(futures.result_bytes(), 60'000);
  EXPECT_FALSE(hold(other, 60'000));
  futures.fail(id, api::FaultCategory::kUser, "cancelled", 0);
  EXPECT_LT(futures.result_bytes(), 1'000);
}

// A peer that does not read keeps the bytes: they count until it has gone.
TEST_F(FuturesTest, BytesCountUntilTheLastConnectionHasWrittenThem) {
  poll("a", finish("a", 60'000, 1));
  futures.expire_polls_and_results(2000);
  EXPECT_GT(futures.result_bytes(), 60'000);
  answers.clear();
  EXPECT_EQ(futures.result_bytes(), 0);
}

// What was held for it is not counted besides what it takes.
TEST_F(FuturesTest, AResultThatIsLargerThanWasHeldTakesTheDifference) {
  const api::RequestId delivered = finish("a", 30'000);
  poll("a", delivered);
  answers.clear();
  const api::RequestId id = futures.new_id("a", FutureKind::kSample);
  Charge charge = futures.open("a");
  ASSERT_TRUE(hold(charge, 60'000));
  futures.add(id, std::move(charge));
  futures.complete(id, json_response(200, std::string(75'000, 'x')), 0);
  poll("a", id);
  EXPECT_EQ(answers.back().bytes().size(), 75'000u);
  poll("a", delivered);
  EXPECT_EQ(statuses.back(), 410);
}

TEST(RequestIds, TellNothingOfOtherTenants) {
  RequestIds ids("secret", 3);
  const std::string first = ids.make("alice", false);
  for (int i = 0; i < 10; ++i) ids.make("bob", false);
  EXPECT_THAT(first, ::testing::StartsWith("r3-0-"));
  EXPECT_THAT(ids.make("alice", true), ::testing::StartsWith("s3-1-"));
  EXPECT_NE(ids.make("carol", false), first);  // of the same number
}

TEST(RequestIds, ProveTheirTenantAndBoot) {
  RequestIds ids("secret", 3);
  const std::string id = ids.make("alice", false), sample = ids.make("alice", true);
  EXPECT_EQ(ids.verify_origin("alice", id), RequestIds::Origin::kThisBoot);
  EXPECT_EQ(ids.verify_origin("bob", id), RequestIds::Origin::kForeign);
  EXPECT_EQ(ids.verify_origin("alice", "r3-1-AAAAAAAAAAAAAAAAAAAA"), RequestIds::Origin::kForeign);
  const RequestIds next("secret", 4);
  EXPECT_EQ(next.verify_origin("alice", id), RequestIds::Origin::kLostOther);
  EXPECT_EQ(next.verify_origin("alice", sample), RequestIds::Origin::kLostSample);
}

}  // namespace
}  // namespace strata::server
