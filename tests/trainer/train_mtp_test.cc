// SPDX-License-Identifier: Apache-2.0
// strata train of what moves beside the model: multi-token prediction, biases of routers.
#include <cmath>

#include "apps/generate/generation.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

// The biases of the routers are no parameters: a run that is killed must find them again.
TEST_F(TrainTest, RoutersBiasesFollowLoadsAndAKilledRunFindsThemAgain) {
  const std::string biases = "model.layers.1.ffn.gate.bias";
  const auto run = [&](const char* out, double rate) {
    TrainOptions o = options(out);
    o.model = make_v4_model();
    o.method = "full";
    o.router_bias_rate = rate;
    return o;
  };
  const TrainOptions straight = run("straight", 0.125);
  ASSERT_EQ(run_train(straight), 0);
  kill_and_resume(run("killed", 0.125));
  expect_same_files("straight", "killed", {"model.safetensors", "trainer/optimizer.safetensors"});
  // Thirty steps of an eighth, up or down or none.
  double moved = 0;
  for (const float value : values_of(straight.out, biases)) {
    EXPECT_EQ(value * 8, std::round(value * 8)) << value;
    moved += std::abs(value);
  }
  EXPECT_GE(moved, 0.125);
  const TrainOptions still = run("still", 0);
  ASSERT_EQ(run_train(still), 0);
  EXPECT_EQ(values_of(still.out, biases), std::vector<float>(4, 0.0f));
}

TEST_F(TrainTest, MultiTokenPredictionTrainsBesideTheModel) {
  const std::string name = "mtp.0.e_proj.weight";
  const auto run = [&](const char* out, std::optional<double> weight) {
    TrainOptions o = options(out);
    o.model = make_v4_model(/*mtp=*/true);
    o.method = "full";
    o.mtp_weight = weight;
    return o;
  };
  const auto mtp_losses = [&](const char* out) {
    std::vector<double> values;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      const double loss = record.number("mtp_loss");
      if (loss == loss) values.push_back(loss);
    }
    return values;
  };
  // Where the model has the layer it is trained unless it is switched off.
  const TrainOptions straight = run("straight", {});
  ASSERT_EQ(run_train(straight), 0);
  kill_and_resume(run("killed", {}));
  expect_same_files("straight", "killed", {"model.safetensors", "trainer/optimizer.safetensors"});
  const std::vector<double> losses_of_run = mtp_losses("straight");
  ASSERT_EQ(losses_of_run.size(), 30u);
  EXPECT_LT(losses_of_run.back(), 0.9 * losses_of_run.front());
  const std::vector<float> before = values_of(straight.model, name);
  EXPECT_NE(values_of(straight.out, name), before);

  const TrainOptions off = run("off", 0.0);
  ASSERT_EQ(run_train(off), 0);
  EXPECT_TRUE(mtp_losses("off").empty());
  EXPECT_EQ(values_of(off.out, name), before);
}

// In stages the biases and the layer are on one stage each; files and losses are those of one, also
// of a run that was killed.
TEST_F(TrainTest, BothAreTheSameInStages) {
  const auto run = [&](const char* out) {
    TrainOptions o = options(out);
    o.model = make_v4_model(/*mtp=*/true);
    o.method = "full";
    o.router_bias_rate = 0.01;
    return o;
  };
  ASSERT_EQ(run_train(run("one")), 0);
  TrainOptions divided = run("divided");
  divided.stages = {.stages = 2, .schedule = "1f1b", .microbatches = 3};
  EXPECT_TRUE(kill_after(divided, 15));
  divided.resume = true;
  ASSERT_EQ(run_train(divided), 0);
  expect_same_files("one", "divided", {"model.safetensors", "trainer/optimizer.safetensors"});
  const auto mtp_losses = [&](const std::string& out) {
    std::vector<double> values;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      const double loss = record.number("mtp_loss");
      if (loss == loss) values.push_back(loss);
    }
    return values;
  };
  EXPECT_EQ(mtp_losses("divided").size(), 30u);
  EXPECT_EQ(mtp_losses("divided"), mtp_losses("one"));
  double moved = 0;
  const std::string biases = "model.layers.1.ffn.gate.bias";
  for (const float value : values_of(divided.out, biases)) moved += std::abs(value);
  EXPECT_GT(moved, 0.0);

  TrainOptions adapter = options("adapter");
  adapter.model = make_v4_model(/*mtp=*/true);
  adapter.targets = "all-linear,embed_tokens,lm_head";
  adapter.mtp_weight = 0.3;
  adapter.steps = 5;
  ASSERT_EQ(run_train(adapter), 0);
  adapter.out = root_ + "/adapter-divided";
  adapter.stages = {.stages = 2, .microbatches = 2};
  ASSERT_EQ(run_train(adapter), 0);
  expect_same_files("adapter", "adapter-divided",
                    {"adapter_model.safetensors", "trainer/optimizer.safetensors"});
}

TEST_F(TrainTest, AnAdapterMayHaveMultiTokenPredictionToo) {
  TrainOptions o = options("adapter");
  o.model = make_v4_model(/*mtp=*/true);
  o.steps = 4;
  ASSERT_EQ(run_train(o), 0);
  const std::string key = "base_model.model.model.mtp.0.h_proj.lora_B.weight";
  EXPECT_EQ(SafetensorsFile(o.out + "/adapter_model.safetensors").find(key), nullptr);
  o.out = root_ + "/adapter-mtp";
  o.mtp_weight = 0.3;
  ASSERT_EQ(run_train(o), 0);
  expect_trained(o.out, key);
  // Who samples with it need not know that it has them.
  GenerationOptions generation;
  generation.model = o.model;
  generation.adapter = o.out;
  generation.threads = 2;
  generation.max_tokens = 3;
  generation.sampling.value_of("temperature") = 0;
  Generator generator(generation);
  const auto write = [](std::string_view) {};
  const auto stop = [] { return false; };
  EXPECT_FALSE(generator.generate({5, 6, 7}, write, stop).tokens.empty());
  o = options("none");
  o.mtp_weight = 0.3;
  EXPECT_NE(fault(o).find("no layer of multi-token prediction"), std::string::npos) << fault(o);
  EXPECT_FALSE(fs::exists(o.out));
}

}  // namespace
}  // namespace strata::apps
