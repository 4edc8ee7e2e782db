// SPDX-License-Identifier: Apache-2.0
#include "server/http/router.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

Router small_router() {
  Router router;
  router.add({"GET", "/api/v1/healthz", BodyKind::kNone,
              at_once([](const Request&) { return json_response(200, "{}"); }), false});
  router.add({"GET", "/api/v1/runs/{}/checkpoints/{}/{}", BodyKind::kNone,
              at_once([](const Request& request) {
                return json_response(
                    200, request.parts[0] + "|" + request.parts[1] + "|" + request.parts[2]);
              })});
  router.add({"GET", "/v1/models/{*}", BodyKind::kNone, at_once([](const Request& request) {
                return json_response(200, request.parts.at(0));
              })});
  router.add({"POST", "/api/v1/bad", BodyKind::kJson, at_once([](const Request&) -> Response {
                throw Error(ErrorCode::kNotFound, "bad: no such \"thing\"");
              })});
  router.add({"POST", "/api/v1/both", BodyKind::kJsonOrProto,
              at_once([](const Request&) { return json_response(200, "{}"); })});
  router.add({"POST", "/api/v1/bug", BodyKind::kJson, at_once([](const Request&) -> Response {
                throw std::runtime_error("secret detail");
              })});
  return router;
}

Response ask(const std::string& method, const std::string& path, const std::string& body = {},
             const std::string& type = {}) {
  Request request;
  request.method = method;
  request.path = path;
  request.body = body;
  if (!type.empty()) request.headers.push_back({"content-type", type});
  Response answer;
  int count = 0;
  const Router router = small_router();
  router.match_route(request);
  router.dispatch(request, [&](Response response) {
    answer = std::move(response);
    ++count;
  });
  EXPECT_EQ(count, 1);
  return answer;
}

TEST(Router, PassesTheMatchedParts) {
  EXPECT_EQ(ask("GET", "/api/v1/runs/a:train:0/checkpoints/weights/x.1").body,
            "a:train:0|weights|x.1");
  EXPECT_EQ(ask("GET", "/v1/models/tinker://a:train:0/sampler_weights/x").body,
            "tinker://a:train:0/sampler_weights/x");
  EXPECT_EQ(ask("GET", "/v1/models/one").body, "one");
  EXPECT_EQ(ask("GET", "/v1/models").status, 404);
}

TEST(Router, UnknownPathsAndMethods) {
  EXPECT_EQ(ask("GET", "/api/v1/nothing").status, 404);
  EXPECT_EQ(ask("GET", "/api/v1/runs//checkpoints/weights/x").status, 404);
  EXPECT_EQ(ask("GET", "/api/v1/runs/a/checkpoints/weights/x/").status, 404);
  const Response wrong = ask("DELETE", "/api/v1/healthz");
  EXPECT_EQ(wrong.status, 405);
  ASSERT_EQ(wrong.headers.size(), 1u);
  EXPECT_EQ(wrong.headers[0].value, "GET");
  EXPECT_FALSE(wrong.body.empty());
}

TEST(Router, ChecksContentTypes) {
  EXPECT_EQ(ask("POST", "/api/v1/both", "{}", "application/json; charset=utf-8").status, 200);
  EXPECT_EQ(ask("POST", "/api/v1/both", "x", "Application/X-Protobuf").status, 200);
  EXPECT_EQ(ask("POST", "/api/v1/both").status, 200);
  EXPECT_EQ(ask("POST", "/api/v1/both", "{}").status, 415);
  EXPECT_EQ(ask("POST", "/api/v1/bad", "x", "application/x-protobuf").status, 415);
  EXPECT_EQ(ask("POST", "/api/v1/bad", "x", "text/plain").status, 415);
}

TEST(Router, TurnsFaultsIntoResponses) {
  const Response missing = ask("POST", "/api/v1/bad", "{}", "application/json");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.body, R"({"detail":"bad: no such \"thing\""})");
  const Response bug = ask("POST", "/api/v1/bug", "{}", "application/json");
  EXPECT_EQ(bug.status, 500);
  EXPECT_EQ(bug.body.find("secret"), std::string::npos);
}

// A cache before the server knows nothing of X-API-Key: what is one tenant's stays with it.
TEST(Response, NobodyKeepsItWhoIsNotTold) {
  Response response = json_response(200, "{}");
  EXPECT_NE(response_head(response, true).find("\r\nCache-Control: no-store\r\n"),
            std::string::npos);
  response.headers.push_back({"Cache-Control", "no-cache"});
  const std::string head = response_head(response, true);
  EXPECT_NE(head.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_EQ(head.find("no-store"), std::string::npos);
}

TEST(Request, ABodyThatIsFreedTakesNoMemory) {
  Request request;
  request.body = std::string(1 << 20, 'x');
  request.free_body();
  EXPECT_LT(request.body.capacity(), 100u);
}

TEST(Request, ReadsParametersAndVersions) {
  Request request;
  request.query = "limit=20&offset=&a%20b=c+d%2Fe&bad=%zz";
  EXPECT_EQ(request.query_parameter("limit"), "20");
  EXPECT_EQ(request.query_parameter("offset"), "");
  EXPECT_EQ(request.query_parameter("a b"), "c d/e");
  EXPECT_EQ(request.query_parameter("bad"), "%zz");
  EXPECT_EQ(request.query_parameter("none"), std::nullopt);
  const auto version = [](const std::string& text) {
    Request with;
    with.headers.push_back({"x-stainless-package-version", text});
    return with.sdk_version();
  };
  EXPECT_EQ(version("0.25.0"), sdk_version_number(0, 25, 0));
  EXPECT_EQ(version("0.28.0rc1"), sdk_version_number(0, 28, 0));
  EXPECT_LT(version("0.27.2"), sdk_version_number(0, 28, 0));
  for (const char* odd : {"", "x", "0", "9999.1.1", "-1.2.3"}) {
    EXPECT_GT(version(odd), sdk_version_number(100, 0, 0)) << odd;
  }
}

}  // namespace
}  // namespace strata::server
