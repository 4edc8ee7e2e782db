// SPDX-License-Identifier: Apache-2.0
// What happens to a command between its acceptance and its result: saves that are written by name,
// and how far long ones are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string save(House& house, const std::string& model) {
  return House::text(
      house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":1,"path":"s"})"),
      "request_id");
}

TEST(Saved, IsWrittenByItsNameOrLetGo) {
  House house;
  const std::string request = save(house, house.model(house.session()));
  house.settle(request, api::Saved{api::SavedAs::kState, "where"});
  EXPECT_THAT(house.written, ElementsAre(request));
  EXPECT_THAT(house.dropped, ElementsAre());
  house.settle("nobody waits for it", api::Saved{api::SavedAs::kState, "where"});
  EXPECT_THAT(house.written, ElementsAre(request));
  EXPECT_THAT(house.dropped, ElementsAre("nobody waits for it"));
}

// A poll that ends says how far its request is.
std::string ended_poll(House& house, const std::string& request) {
  Response answer;
  answer.status = 0;
  house.poll(request, [&](Response response) { answer = std::move(response); });
  EXPECT_EQ(answer.status, 0);
  house.service().tick(now_seconds() + 31);
  EXPECT_EQ(answer.status, 408);
  return answer.body;
}

TEST(Progress, OfALongPassIsInThePollAndOnThePage) {
  House house;
  const std::string model = house.model(house.session());
  const std::string request = house.step(model);
  EXPECT_THAT(ended_poll(house, request), Not(HasSubstr("reason")));
  house.service().post({api::Event({request}, api::Progress{.done = 3, .total = 8})});
  EXPECT_THAT(ended_poll(house, request),
              HasSubstr(R"("queue_state_reason":"3 of 8 data are done")"));
  EXPECT_EQ(house.watch().runs().at(model).in_flight, "3 of 8 data are done");
  house.service().post({api::Event({request}, api::Progress{.done = 3.5, .total = 8})});
  EXPECT_EQ(house.watch().runs().at(model).in_flight, "44 % of its data are done");
  house.settle(request, api::StepResult{});
  EXPECT_EQ(house.watch().runs().at(model).in_flight, "");
}

TEST(Progress, OfASaveThatIsBeingWritten) {
  House house;
  const std::string model = house.model(house.session());
  const std::string request = save(house, model);
  house.holds_jobs = true;
  house.settle(request, api::Saved{api::SavedAs::kState, "where"});
  EXPECT_THAT(ended_poll(house, request), HasSubstr("its files are being written"));
  EXPECT_EQ(house.watch().runs().at(model).in_flight, "its files are being written");
  house.holds_jobs = false;
  house.run_aside();
  EXPECT_EQ(house.poll(request).status, 200);
  EXPECT_EQ(house.watch().runs().at(model).in_flight, "");
}

}  // namespace
}  // namespace strata::server
