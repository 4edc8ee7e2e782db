// SPDX-License-Identifier: Apache-2.0
// The request of probe: every loss with its inputs and options, as the rows of api/losses.h say.
#include "apps/probe/probe_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using strata::testing::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string request(const std::string& loss, const std::string& inputs) {
  return fmt::format(
      R"({{"loss":{},"sequences":[{{"tokens":[1,2],"targets":[2,3]{}}}],"want":["loss"]}})", loss,
      inputs);
}

ProbeRequest parsed(const std::string& text) { return parse_probe_request(text, "r.json", 0); }

TEST(ProbeRequest, KnowsEveryLossWithItsInputsAndOptions) {
  for (const api::LossRow& row : api::kLosses) {
    if (row.of_pairs) {  // which are two sequences, and no request's
      EXPECT_THAT(
          error_of([&] { parsed(request(fmt::format(R"({{"name":"{}"}})", row.name), "")); }),
          HasSubstr("wanted one of cross_entropy"));
      continue;
    }
    std::string inputs, options;
    for (const api::LossInput input : row.inputs)
      inputs += fmt::format(",\"{}\":[1,0.5]", api::row_of(input).name);
    for (size_t i = 0; i < row.options.size(); ++i)
      options += fmt::format("{}\"{}\":0.{}5", i == 0 ? "" : ",", row.options[i].name, i + 1);
    const std::string loss = fmt::format(R"({{"name":"{}","config":{{{}}}}})", row.name, options);
    const ProbeRequest got = parsed(request(loss, inputs));
    ASSERT_EQ(got.sequences.size(), 1u);
    EXPECT_EQ(got.sequences[0].loss.name, row.id);
    EXPECT_EQ(got.sequences[0].datum, &got.data[0]);
    for (size_t i = 0; i < row.options.size(); ++i)
      EXPECT_FLOAT_EQ(got.sequences[0].loss.options[i], 0.1f * static_cast<float>(i + 1) + 0.05f);
    for (const api::LossInput input : row.inputs)
      EXPECT_THAT(got.data[0].inputs[input], ElementsAre(1.0f, 0.5f)) << row.name;
    if (row.inputs[0] == api::LossInput::kWeights) continue;
    EXPECT_THAT(error_of([&] { parsed(request(loss, "")); }),
                HasSubstr(fmt::format("sequences[0].{}: is missing; the loss needs it",
                                      api::row_of(row.inputs[0]).name)));
  }
}

TEST(ProbeRequest, ThresholdsOfCispoAreThoseOfPpo) {
  for (const char* name : {"ppo", "cispo"}) {
    const ProbeRequest got = parsed(request(fmt::format(R"({{"name":"{}"}})", name),
                                            R"(,"logprobs":[0,0],"advantages":[1,1])"));
    EXPECT_FLOAT_EQ(got.sequences[0].loss.options[0], 0.8f) << name;
    EXPECT_FLOAT_EQ(got.sequences[0].loss.options[1], 1.2f) << name;
  }
}

TEST(ProbeRequest, ASeedHas64BitsAndNoSign) {
  const auto with_seed = [](const std::string& seed) {
    return parsed(fmt::format(R"({{"sequences":[{{"tokens":[1]}}],"want":["logits"],)"
                              R"("sample":[{{"tokens":[1],"max_tokens":1,"seed":{}}}]}})",
                              seed));
  };
  EXPECT_EQ(with_seed("18446744073709551615").samples.at(0).seed, UINT64_MAX);
  EXPECT_EQ(with_seed("0").samples.at(0).seed, 0u);
  for (const char* seed : {"-1", "1.5", "\"1\"", "18446744073709551616"})
    EXPECT_THAT(error_of([&] { with_seed(seed); }), HasSubstr("seed: ")) << seed;
}

TEST(ProbeRequest, NamesWhatALossLacksOrDoesNotKnow) {
  const std::string policy = R"(,"logprobs":[0,0],"advantages":[1,1])";
  EXPECT_THAT(error_of([&] { parsed(request(R"({"name":"dro"})", policy)); }),
              HasSubstr("r.json: loss.config.beta: this field is required"));
  EXPECT_THAT(error_of([&] { parsed(request(R"({"name":"gspo"})", policy)); }),
              HasSubstr("sequence_ratio_mask: is missing; the loss needs it"));
  EXPECT_THAT(error_of([&] { parsed(request(R"({"name":"ppo","config":{"beta":1}})", policy)); }),
              HasSubstr("loss.config.beta: unknown field"));
  EXPECT_THAT(error_of([&] { parsed(request(R"({"name":"PPO"})", policy)); }),
              HasSubstr("got 'PPO', wanted one of cross_entropy, importance_sampling, "));
}

}  // namespace
}  // namespace strata::apps
