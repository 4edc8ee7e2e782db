// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/page.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

namespace json = boost::json;

TEST(LivePage, OnlyAdministratorsSeeWhatAllTenantsDo) {
  House house;
  house.model(house.session("alice"), 0, "tiny", "alice");
  house.model(house.session("bob"), 0, "tiny", "bob");
  const Budget budget{ServeOptions()};
  const BaseNames names({"tiny=/tmp"}, {}, {});
  EngineStats stats;
  stats.queued_samples = 7;
  stats.state_limit = 5;
  LivePage page(
      {house.service(), house.watch(), house.usage(), budget, names, {{.id = api::BaseId{0}}}, [&] {
         return stats;
       }});
  Router router;
  page.add_routes(router);
  const auto overview = [&](bool is_admin) {
    Request request;
    request.method = "GET";
    request.path = "/page/overview";
    request.tenant = "alice";
    request.is_admin = is_admin;
    Response answer;
    router.match_route(request);
    router.dispatch(std::move(request), [&](Response response) { answer = std::move(response); });
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body).as_object();
  };
  const json::object own = overview(false), all = overview(true);
  EXPECT_FALSE(own.contains("server"));
  EXPECT_EQ(own.at("adapters").as_array().size(), 1u);
  EXPECT_EQ(all.at("server").at("queues").at("samples").as_int64(), 7);
  EXPECT_EQ(all.at("adapters").as_array().size(), 2u);
  const std::string memory = json::serialize(all.at("server").at("memory"));
  EXPECT_NE(memory.find(R"({"use":"recurrent states","bytes":0,"limit":5})"), std::string::npos);
}

}  // namespace
}  // namespace strata::server
