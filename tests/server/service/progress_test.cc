// SPDX-License-Identifier: Apache-2.0
// What happens to a command between its acceptance and its result: saves that are written by name,
// and how far long ones are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "tests/server/service/house.h"

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

}  // namespace
}  // namespace strata::server
