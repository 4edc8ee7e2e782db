// SPDX-License-Identifier: Apache-2.0
// strata train and generate over ranks that divide every matrix: processes under mpirun give the
// files and the text of one process.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/ranks/ranks_fixture.h"

namespace strata::apps {
namespace {

using testing::HasSubstr;

// Ranks that divide every matrix, alone, as stages and with data ranks.
TEST_F(RanksTest, OfTensorsChangeNoBit) {
  struct Case {
    int ranks;
    std::string division;
    StageOptions stages = {};
  };
  std::vector<Case> cases = {{2, "tensor=2"},
                             {4, "tensor=2,pipeline=2", {.schedule = "1f1b", .microbatches = 2}}};
  if (runs_all()) {
    cases.push_back({4, "tensor=2,data=2", {.shard_weights = true}});
    cases.push_back({2, "tensor=2", {.stages = 2, .schedule = "zb1p", .microbatches = 2}});
  }
  TrainOptions one = options("one");
  one.model = deep_model(4);
  one.targets = "all-linear,embed_tokens,lm_head";
  one.steps = 4;
  ASSERT_EQ(run_train(one), 0);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = fmt::format("tensor{}", i);
    SCOPED_TRACE(cases[i].division);
    const Ended ended =
        run_ranks(cases[i].ranks, dealt(one, name, cases[i].division, cases[i].stages));
    ASSERT_EQ(ended.code, 0) << ended.text;
    expect_the_files_of(one, name, "adapter_model.safetensors");
  }
}

// One line of JSON, printed once, with the tokens and logprobs of one process.
TEST_F(RanksTest, GenerateWithDividedMatricesAndLayers) {
  const std::vector<std::string> words = {STRATA_BINARY,
                                          "generate",
                                          "--model",
                                          std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3",
                                          "--prompt",
                                          "Once upon a time",
                                          "--seed",
                                          "5",
                                          "--temperature",
                                          "0.9",
                                          "--json",
                                          "--max-tokens",
                                          "12"};
  const Ended one = run_shell(quoted(words));
  ASSERT_EQ(one.code, 0) << one.text;
  const auto generate = [&](int ranks, const std::string& division) {
    return run_shell(fmt::format("{}-n {} {} --ranks {}", kMpirun, ranks, quoted(words), division));
  };
  for (const auto& [ranks, division] : {std::pair(2, "tensor=2"), std::pair(2, "pipeline=2"),
                                        std::pair(4, "pipeline=2,tensor=2")}) {
    const Ended divided = generate(ranks, division);
    ASSERT_EQ(divided.code, 0) << divided.text;
    EXPECT_EQ(divided.out, one.out) << division;
  }
  for (const auto& [division, wanted] :
       {std::pair("data=2", "generate has one answer and no data ranks"),
        std::pair("pipeline=2 --stages 2", "generate divides a model by one of them alone"),
        std::pair("tensor=2 --speculate mtp", "a model that is divided makes no drafts")}) {
    const Ended refused = generate(2, division);
    EXPECT_EQ(refused.code, 2) << division;
    EXPECT_THAT(refused.text, HasSubstr(wanted));
  }
}

}  // namespace
}  // namespace strata::apps
