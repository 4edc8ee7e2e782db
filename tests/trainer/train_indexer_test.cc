// SPDX-License-Identifier: Apache-2.0
// strata train --indexer-loss: indexers of DeepSeek-V4 that learn beside the model or alone.
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

// In an adapter, and in a model's files.
constexpr const char* kIndexer = "model.layers.1.self_attn.compressor.indexer.";
constexpr const char* kStored = "model.layers.1.attn.indexer.";

class TrainIndexerTest : public TrainTest {
 protected:
  [[nodiscard]] TrainOptions indexer_options(const char* out, double weight) const {
    TrainOptions o = options(out);
    o.model = make_v4_model(/*mtp=*/false, /*indexer=*/true);
    o.indexer_loss = weight;
    return o;
  }
  [[nodiscard]] std::vector<double> indexer_losses(const char* out) const {
    std::vector<double> values;
    for (const auto& record : report::read_metrics(root_ + "/" + out + "/metrics.jsonl")) {
      const double loss = record.number("indexer_loss");
      if (loss == loss) values.push_back(loss);
    }
    return values;
  }
};

TEST_F(TrainIndexerTest, TrainsBesideAllParametersAndAKilledRunGoesOn) {
  const auto run = [&](const char* out, double weight) {
    TrainOptions o = indexer_options(out, weight);
    o.method = "full";
    return o;
  };
  const TrainOptions straight = run("straight", 2.0);
  ASSERT_EQ(run_train(straight), 0);
  TrainOptions killed = run("killed", 2.0);
  EXPECT_TRUE(kill_after(killed, 15));
  killed.resume = true;
  ASSERT_EQ(run_train(killed), 0);
  expect_same_files("straight", "killed", {"model.safetensors", "trainer/optimizer.safetensors"});
  const std::vector<double> losses = indexer_losses("straight");
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_LT(losses.back(), losses.front());
  const TrainOptions off = run("off", 0.0);
  ASSERT_EQ(run_train(off), 0);
  EXPECT_TRUE(indexer_losses("off").empty());
  for (const char* end : {"compressor.wkv.weight", "compressor.wgate.weight", "wq_b.weight",
                          "weights_proj.weight", "compressor.norm.weight", "compressor.ape"}) {
    const std::string name = std::string(kStored) + end;
    EXPECT_NE(values_of(straight.out, name), values_of(straight.model, name)) << name;
    EXPECT_EQ(values_of(off.out, name), values_of(straight.model, name)) << name;
  }
}

TEST_F(TrainIndexerTest, AnAdapterHasTheIndexersModulesThen) {
  const std::string key =
      "base_model.model." + std::string(kIndexer) + "scorer.weights_proj.lora_B.weight";
  TrainOptions o = indexer_options("off", 0);
  o.steps = 4;
  ASSERT_EQ(run_train(o), 0);
  EXPECT_EQ(SafetensorsFile(o.out + "/adapter_model.safetensors").find(key), nullptr);
  o.out = root_ + "/on";
  o.indexer_loss = 1;
  ASSERT_EQ(run_train(o), 0);
  EXPECT_EQ(indexer_losses("on").size(), 4u);
  expect_trained(o.out, key);
}

TEST_F(TrainIndexerTest, StagesTrainThemToTheSameFiles) {
  for (const char* method : {"lora", "full"}) {
    const auto run = [&](const std::string& out, int stages) {
      TrainOptions o = indexer_options(out.c_str(), 2.0);
      o.method = method;
      o.steps = 6;
      o.stages.stages = stages;
      o.stages.microbatches = stages == 1 ? 1 : 3;
      EXPECT_EQ(run_train(o), 0);
      return indexer_losses(out.c_str());
    };
    const std::string one = std::string(method) + "-1", two = std::string(method) + "-2";
    const std::vector<double> losses = run(one, 1);
    EXPECT_EQ(losses.size(), 6u);
    EXPECT_EQ(run(two, 2), losses);
    expect_same_files(one.c_str(), two.c_str(), {"trainer/optimizer.safetensors"});
  }
}

TEST_F(TrainIndexerTest, WhatCannotTrainIsRefused) {
  TrainOptions o = options("out");
  o.indexer_loss = 1;
  EXPECT_EQ(fault(o),
            "--indexer-loss: no layer of " + o.model + " (Qwen3ForCausalLM) has an indexer");
  o = indexer_options("out", 1);
  o.targets = "o_a_proj";
  EXPECT_EQ(fault(o),
            "--indexer-loss: no module of an indexer trains; --targets: got 'o_a_proj', want "
            "all-linear, or q_b_proj, kv_proj, gate_proj or weights_proj among them");
  o = indexer_options("out", 0);
  o.targets = "weights_proj";
  EXPECT_NE(fault(o).find("no loss that trains it"), std::string::npos) << fault(o);
  EXPECT_FALSE(fs::exists(o.out));
}

}  // namespace
}  // namespace strata::apps
