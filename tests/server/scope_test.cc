// SPDX-License-Identifier: Apache-2.0
// Which key may call what. A new route stands here, with the least that its key must be allowed.
#include "server/http/scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/openai_endpoint.h"
#include "server/store/checkpoints/signed_url.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/rest/rest.h"
#include "tests/server/tinker/service/house.h"

namespace strata::server {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(Scope, OfEveryRoute) {
  House house;
  Router router;
  add_operations(router, house.service());
  const UrlSigner signer(house.data().secret(), house.store(), 3600,
                         [](const std::string&) { return true; });
  Worker worker;
  StoreLists lists(open_sqlite_reader(house.data().database()));
  const BaseNames names({"base=" + house.data().path()}, {}, {});
  Rest rest({house.store(),
             lists,
             house.registry(),
             signer,
             worker,
             worker,
             worker,
             worker,
             house.usage(),
             worker,
             names,
             {}});
  rest.add_routes(router);
  OpenAiEndpoint openai({.service = house.service(), .names = names, .bases = {}, .texts = {}});
  openai.add_routes(router);
  std::vector<std::string> open, read, sample, all;
  for (const Route& route : router.routes()) {
    std::string name = route.method + " " + route.pattern;
    if (const size_t at = name.find("/api/v1/"); at != std::string::npos) name.erase(at, 8);
    if (!route.needs_key) {
      open.push_back(name);
    } else if (route.scope == Scope::kRead) {
      // What a read-only key may do changes nothing but its own sessions.
      const bool is_session = name == "POST create_session" || name == "POST sessions/{}/finish";
      EXPECT_EQ(route.effect == Effect::kChanges, is_session) << name;
      if (route.method != "GET") read.push_back(name);
    } else {
      EXPECT_EQ(route.effect, Effect::kChanges) << name;
      EXPECT_NE(route.method, "GET") << name;
      (route.scope == Scope::kSample ? sample : all).push_back(name);
    }
  }
  EXPECT_THAT(open, ElementsAre("GET healthz", "GET readyz", "GET files/{}/{}", "GET /health"));
  EXPECT_THAT(read, UnorderedElementsAre(
                        "POST client/config", "POST client/dynamic_config", "POST telemetry",
                        "POST create_session", "POST session_heartbeat", "POST sessions/{}/finish",
                        "POST get_info", "POST weights_info", "POST retrieve_future",
                        "POST /v1/responses", "POST /v1/messages", "POST /v1/embeddings"));
  EXPECT_THAT(sample, UnorderedElementsAre("POST create_sampling_session", "POST asample",
                                           "POST cancel_future", "POST /v1/chat/completions",
                                           "POST /v1/completions"));
  const std::string checkpoint = "training_runs/{}/checkpoints/{}/{}";
  EXPECT_THAT(
      all, UnorderedElementsAre(
               "POST create_model", "POST unload_model", "POST forward_backward", "POST forward",
               "POST optim_step", "POST load_weights", "POST save_weights",
               "POST save_weights_for_sampler", "POST save_weights_external", "POST copy_weights",
               "POST requests/{}/cancel", "PUT sessions/{}/project", "PUT " + checkpoint + "/ttl",
               "DELETE " + checkpoint, "POST " + checkpoint + "/publish",
               "DELETE " + checkpoint + "/publish", "DELETE training_runs/{}/checkpoints/{}"));
}

TEST(Scope, AKeyEndsNoSessionWithWhatItCouldNotMake) {
  House house;
  const std::string empty = house.session(), sampling = house.session(), training = house.session();
  house.model(training);
  house.post(
      "create_sampling_session",
      R"({"session_id":")" + sampling + R"(","sampling_session_seq_id":0,"base_model":"tiny"})");
  const auto finish = [&](const std::string& session, Scope scope) {
    return house.call("POST", "sessions/" + session + "/finish", "{}", "alice", {}, scope).status;
  };
  EXPECT_EQ(finish(training, Scope::kRead), 403);
  EXPECT_EQ(finish(training, Scope::kSample), 403);
  EXPECT_EQ(finish(sampling, Scope::kRead), 403);
  EXPECT_EQ(house.ended.size(), 0u);
  EXPECT_EQ(finish(empty, Scope::kRead), 200);
  EXPECT_EQ(finish(sampling, Scope::kSample), 200);
  EXPECT_EQ(finish(training, Scope::kAll), 200);
  EXPECT_EQ(house.ended.size(), 3u);
}

}  // namespace
}  // namespace strata::server
