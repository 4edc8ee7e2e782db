// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

// Clients that know nothing of it leave max_trained_length alone.
TEST(Capabilities, TellsHowLongADatumMayBe) {
  House house;
  EXPECT_EQ(house.call("GET", "get_server_capabilities").body,
            R"({"supported_models":[{"model_name":"tiny","max_context_length":64,)"
            R"("max_trained_length":48,"trainable":true,"sampleable":true}]})");
}

}  // namespace
}  // namespace strata::server
