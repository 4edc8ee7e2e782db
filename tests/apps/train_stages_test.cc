// strata train in stages: the files of one stage, also of runs that were killed.
#include "tests/apps/train_fixture.h"

namespace strata::apps {
namespace {

TEST_F(TrainTest, StagesChangeNoBit) {
  TrainOptions one = options("one");
  one.model = deep_model();
  one.targets = "all-linear,embed_tokens,lm_head";
  one.steps = 5;
  ASSERT_EQ(run_train(one), 0);
  const std::vector<StageOptions> divisions = {
      {.stages = 2, .schedule = "1f1b", .microbatches = 3},
      {.stages = 3, .schedule = "gpipe", .microbatches = 2, .layers_per_stage = "1,1,1"},
      {.stages = 1, .chunks = 3, .schedule = "circular", .microbatches = 2},
      {.stages = 2, .microbatches = 1, .leftovers = "before"}};
  for (size_t i = 0; i < divisions.size(); ++i) {
    SCOPED_TRACE(i);
    TrainOptions divided = one;
    divided.out = root_ + "/divided" + std::to_string(i);
    divided.stages = divisions[i];
    divided.recompute = i % 2 == 1 ? "full" : "none";
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files("one", "divided" + std::to_string(i),
                      {"adapter_model.safetensors", "adapter_config.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

TEST_F(TrainTest, StagesChangeNoBitOfAllParameters) {
  for (const char* const optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions one = options(std::string("one-") + optimizer);
    one.model = deep_model();
    one.method = "full";
    one.optimizer = optimizer;
    one.dtype = "bf16";
    one.steps = 4;
    ASSERT_EQ(run_train(one), 0);
    TrainOptions divided = one;
    divided.out = root_ + "/divided-" + optimizer;
    divided.stages = {.stages = 3, .schedule = "1f1b", .microbatches = 3};
    ASSERT_EQ(run_train(divided), 0);
    expect_same_files(std::string("one-") + optimizer, std::string("divided-") + optimizer,
                      {"model.safetensors", "config.json", "tokenizer.json",
                       "trainer/optimizer.safetensors", "trainer/state.json"});
  }
}

TEST_F(TrainTest, AKilledRunInStagesResumesInOthersToTheSameBits) {
  TrainOptions straight = options("straight");
  straight.model = deep_model();
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions killed = straight;
  killed.out = root_ + "/killed";
  killed.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  killed.stages = {.stages = 3, .schedule = "gpipe", .microbatches = 3};
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight", "killed",
                    {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
  straight.out = root_ + "/straight-full";
  straight.method = "full";
  ASSERT_EQ(run_train(straight), 0);
  killed = straight;
  killed.out = root_ + "/killed-full";
  killed.stages = {.stages = 3, .schedule = "gpipe", .microbatches = 3};
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  killed.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 2};
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight-full", "killed-full",
                    {"model.safetensors", "trainer/optimizer.safetensors"});
}

TEST_F(TrainTest, RefusesStagesThatDoNotFitByTheirNumbers) {
  TrainOptions o = options("out");
  o.model = deep_model();
  const auto refused = [&](const StageOptions& stages) {
    TrainOptions divided = o;
    divided.stages = stages;
    return fault(divided);
  };
  const auto expect_in = [](const std::string& text, const std::string& message) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect_in("2 stages of 2 chunks are 4 chunks, and the model has 3 layers",
            refused({.stages = 2, .chunks = 2, .schedule = "circular", .microbatches = 2}));
  expect_in("2 stages with 4 layers, want 2 stages with the model's 3 layers",
            refused({.stages = 2, .layers_per_stage = "2,2"}));
  expect_in("got '0' in '3,0'", refused({.stages = 2, .layers_per_stage = "3,0"}));
  expect_in("2 ranks, 3 micro-batches, 1 chunks",
            refused({.stages = 2, .schedule = "circular", .microbatches = 3}));
  expect_in("weight gradients apart",
            refused({.stages = 2, .schedule = "zb1p", .microbatches = 4}));
  expect_in("--leftovers after: --layers-per-stage 2,1 leaves none over",
            refused({.stages = 2, .layers_per_stage = "2,1", .leftovers = "after"}));
  o.memory = "8GiB";
  expect_in("--memory and --stages", refused({.stages = 2}));
}

}  // namespace
}  // namespace strata::apps
