// SPDX-License-Identifier: Apache-2.0
// The JSON of a pass carries the numbers of its result, to the bit.
#include "server/tinker/protocol/results.h"

#include <gtest/gtest.h>

#include <limits>

namespace strata::server {
namespace {

TEST(Results, APassAsJsonHasEveryDatumInOrder) {
  api::ForwardBackwardResult result;
  result.data = {{{-0.1f, -2.0f}, 0},
                 {{-1e-30f, 0.0f, -3.5f, -std::numeric_limits<float>::infinity()}, 2},
                 {{-1.0f}, 0}};
  result.metrics = {{"loss:sum", 0.1}, {"bad:max", std::numeric_limits<double>::quiet_NaN()}};
  const Response response = forward_backward_json_response(result);
  EXPECT_EQ(response.content_type, "application/json");
  EXPECT_EQ(response.body,
            R"({"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":[)"
            R"({"logprobs":{"data":[-0.10000000149011612,-2],"dtype":"float32","shape":[2]}},)"
            R"({"logprobs":{"data":[-1.0000000031710769e-30,0,-3.5,null],"dtype":"float32",)"
            R"("shape":[2,2]}},)"
            R"({"logprobs":{"data":[-1],"dtype":"float32","shape":[1]}}],)"
            R"("metrics":{"loss:sum":0.1}})");
}

TEST(Results, APassIsEncodedAsThePollAccepts) {
  api::ForwardBackwardResult result;
  result.data = {{{-0.5f, -2.0f}, 0}};
  result.metrics = {{"loss:sum", 2.5}};
  const Response kept = negotiated_forward_backward_response(result);
  ASSERT_TRUE(kept.encoding);
  EXPECT_TRUE(kept.body.empty());
  EXPECT_GE(kept.num_bytes(), 2 * sizeof(float));
  EXPECT_EQ(kept.encoding->make(true).body, forward_backward_json_response(result).body);
  EXPECT_EQ(kept.encoding->make(false).body, forward_backward_response(result).body);
  EXPECT_EQ(kept.encoding->make(false).content_type, kProtobuf);
}

// SampleResponse.prompt_cache_hit_tokens, field 4.
TEST(Results, ASampleSaysHowMuchOfItsPromptWasKnown) {
  EXPECT_EQ(sample_response({}, {}).body, "");
  EXPECT_EQ(sample_response({.cached_tokens = 24}, {}).body, "\x20\x18");
}

TEST(Results, OnlyWhoReadsNoProtobufGetsJson) {
  EXPECT_TRUE(accepts_json_only("application/json"));
  EXPECT_TRUE(accepts_json_only("text/html, application/json;q=0.9"));
  for (const char* accept : {"", "*/*", "application/x-protobuf", "application/*", "text/html",
                             "application/x-protobuf, application/json", "application/json, */*"}) {
    EXPECT_FALSE(accepts_json_only(accept)) << accept;
  }
}

}  // namespace
}  // namespace strata::server
