// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/service/house.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

TEST(SaveWeights, AFaultOfTheServersFilesNamesNoPath) {
  House house;
  const std::string model = house.model(house.session());
  const Response saved =
      house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":1,"path":"s"})");
  const std::string request = House::text(saved, "request_id");
  house.settle(request, api::Failure{api::FaultCategory::kServer,
                                     house.data().path() + "/x: create: Not a directory"});
  const Response told = house.poll(request);
  EXPECT_THAT(told.body, HasSubstr("its log says why"));
  EXPECT_THAT(told.body, ::testing::Not(HasSubstr(house.data().path())));
}

// Space on the disk is taken when a save is accepted, not when it has been written.
TEST(SaveWeights, SavesInLineReserveTheirBytes) {
  RegistryOptions disk;
  disk.max_disk = 10'000;
  House house({}, disk);
  const std::string model = house.model(house.session());
  std::vector<std::string> requests;
  const auto save = [&](int seq) {
    const std::string number = std::to_string(seq);
    return house.post("save_weights", R"({"model_id":")" + model + R"(","seq_id":)" + number +
                                          R"(,"path":"s)" + number + "\"}");
  };
  for (int seq = 1; seq <= 4; ++seq) {
    const Response saved = save(seq);
    EXPECT_EQ(saved.status, 200) << saved.body;
    requests.push_back(House::text(saved, "request_id"));
  }
  EXPECT_EQ(house.submitted.size(), 4u);  // the model and three saves of 3,000 bytes
  const Response refused = house.poll(requests[3]);
  EXPECT_THAT(refused.body, HasSubstr("--max-disk"));
  EXPECT_THAT(refused.body, HasSubstr("\"server\""));
  house.settle(requests[0], api::Failure{api::FaultCategory::kServer, "no"});
  save(5);
  EXPECT_EQ(house.submitted.size(), 5u);
}

}  // namespace
}  // namespace strata::server
