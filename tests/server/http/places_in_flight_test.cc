// SPDX-License-Identifier: Apache-2.0
// How much of what connections may take the requests of one tenant hold at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/http/places.h"
#include "tests/server/http/server_fixture.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

struct InFlightTest : HttpServerTest {
  // Eight connections, and two tenants.
  InFlightTest() {
    set_space(8);
    options.body_timeout = options.header_timeout = 5;
    serve();
  }
  // For so many connections.
  void set_space(int64_t count) {
    constexpr int64_t kOne = connection_bytes(false);
    options.connections = SharedLimit(count * kOne);
    options.accounts.of(Use::kRequest) = SharedLimit(count * kOne, kOne);
    options.accounts.of(Use::kSign) = SharedLimit(count * kOne / 4, kOne);
    options.accounts.set_num_tenants(2);
  }
  [[nodiscard]] std::string post(const std::string& path, const std::string& key) const {
    std::string text = head("POST /api/v1/" + path, length(2)) + "{}";
    return text.replace(text.find("tml-good"), 8, key);
  }
  // Of a connection of its own, which stays; "": it waits for its answer.
  std::string begin(const std::string& path, const std::string& key) {
    clients_.push_back(std::make_unique<Client>(server->port()));
    clients_.back()->send(post(path, key));
    const std::string answer = clients_.back()->read(0.3);
    if (!answer.empty()) {  // whoever was refused does not close, and makes way all the same
      refused_.push_back(std::move(clients_.back()));
      clients_.pop_back();
    }
    return answer;
  }

  std::vector<std::unique_ptr<Client>> clients_, refused_;
};

TEST_F(InFlightTest, ATenantLeavesOthersTheirPart) {
  for (int i = 0; i < 6; ++i) EXPECT_EQ(begin("park", "tml-good"), "") << i;
  for (int i = 0; i < 4; ++i) {
    const std::string refused = begin("park", "tml-good");
    EXPECT_EQ(status(refused), "429");
    EXPECT_THAT(refused, HasSubstr("--max-connection-bytes"));
  }
  EXPECT_EQ(begin("park", "tml-other"), "");
  Client one(server->port());
  for (const char* key : {"tml-other", "tml-good"}) {  // a sign of life is answered at once
    one.send(post("beat", key));
    EXPECT_EQ(status(one.read()), "200") << key;
  }
  parked.front()(json_response(200, "{}"));
  EXPECT_EQ(status(clients_.front()->read()), "200");
  clients_.front()->send(post("park", "tml-good"));
  EXPECT_EQ(clients_.front()->read(0.3), "");
}

TEST_F(InFlightTest, PollsLeaveSomeToWhatTheyWaitFor) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(begin("poll", "tml-good"), "") << i;
  EXPECT_EQ(status(begin("poll", "tml-good")), "429");
  EXPECT_EQ(begin("park", "tml-good"), "");
}

// Signs of life whose end does not come have a part as well: others find places.
TEST_F(InFlightTest, SignsOfLifeThatDoNotEndLeaveOthersTheirs) {
  set_space(16);
  serve();
  std::vector<std::unique_ptr<Client>> held;
  int num_refused = 0;
  for (int i = 0; i < 6; ++i) {
    held.push_back(std::make_unique<Client>(server->port()));
    held.back()->send(head("POST /api/v1/beat", length(100)));
    const std::string answer = held.back()->read(0.2);
    num_refused += !answer.empty() && status(answer) == "429" ? 1 : 0;
  }
  EXPECT_GE(num_refused, 3);
  EXPECT_LT(num_refused, 6);
  Client other(server->port());
  other.send(post("beat", "tml-other"));
  EXPECT_EQ(status(other.read()), "200");
}

// Where the keys name one tenant alone, it has all.
TEST_F(InFlightTest, OneTenantAloneHasAll) {
  options.accounts.set_num_tenants(1);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(begin("park", "tml-good"), "") << i;
}

}  // namespace
}  // namespace strata::server
