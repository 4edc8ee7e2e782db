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
TEST_F(RanksTest, GenerateWithDividedMatrices) {
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
  const Ended two = run_shell(fmt::format("{}-n 2 {} --ranks tensor=2", kMpirun, quoted(words)));
  ASSERT_EQ(two.code, 0) << two.text;
  EXPECT_EQ(two.out, one.out);
  const Ended staged =
      run_shell(fmt::format("{}-n 2 {} --ranks pipeline=2", kMpirun, quoted(words)));
  EXPECT_EQ(staged.code, 2);
  EXPECT_THAT(staged.text, HasSubstr("generate divides a model by tensor=N or expert=N alone"));
}

}  // namespace
}  // namespace strata::apps
