// SPDX-License-Identifier: Apache-2.0
// strata train from its options to its files: what is refused, what falls, and that a killed run
// resumes to the same bits.
#include <cmath>

#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

TEST_F(TrainTest, LossFallsAndFilesAreThere) {
  TrainOptions full = options("full");
  full.method = "full";
  ASSERT_EQ(run_train(full), 0);
  const std::vector<double> values = losses("full");
  // Random weights know nothing: the first value is near ln 4096.
  EXPECT_NEAR(values.front(), 8.318, 0.3);
  EXPECT_LT(values.back(), 0.8 * values.front());
  TrainOptions lora = options("out");
  lora.steps = 2;
  ASSERT_EQ(run_train(lora), 0);
  for (const char* name :
       {"README.md", "adapter_config.json", "adapter_model.safetensors", "loss.svg",
        "metrics.jsonl", "trainer/optimizer.safetensors", "trainer/state.json"}) {
    EXPECT_TRUE(file_exists(root_ + "/out/" + name)) << name;
  }
}

TEST_F(TrainTest, AKilledLoraRunResumesToTheSameBits) {
  ASSERT_EQ(run_train(options("straight")), 0);
  int kills = 0;
  for (const int64_t lines : {3, 12, 20, 31}) kills += kill_after(options("killed"), lines);
  EXPECT_GE(kills, 1);
  TrainOptions last = options("killed");
  last.resume = true;
  ASSERT_EQ(run_train(last), 0);
  expect_same_files("straight", "killed",
                    {"adapter_model.safetensors", "README.md", "trainer/optimizer.safetensors",
                     "trainer/state.json"});
}

TEST_F(TrainTest, AKilledFullRunResumesToTheSameBits) {
  std::string weights;
  for (const char* const optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions straight = options(std::string("straight-") + optimizer);
    straight.method = "full";
    straight.optimizer = optimizer;
    ASSERT_EQ(run_train(straight), 0);
    TrainOptions killed = options(std::string("killed-") + optimizer);
    killed.method = "full";
    killed.optimizer = optimizer;
    kill_and_resume(killed);
    expect_same_files(std::string("straight-") + optimizer, std::string("killed-") + optimizer,
                      {"model.safetensors", "config.json", "tokenizer.json", "README.md",
                       "trainer/optimizer.safetensors"});
    const std::string trained = content(straight.out + "/model.safetensors");
    EXPECT_FALSE(trained == content(model() + "/model.safetensors"));
    EXPECT_FALSE(trained == weights);
    weights = trained;
  }
}

TEST_F(TrainTest, ResumeWithOtherOptionsIsRefusedByName) {
  TrainOptions o = options("out");
  o.steps = 2;
  ASSERT_EQ(run_train(o), 0);
  EXPECT_NE(fault(o).find("holds a run already"), std::string::npos);
  // Nor are others' files written over, but for those of a run that was killed in its first save.
  std::filesystem::remove_all(o.out + "/trainer");
  EXPECT_NE(fault(o).find("holds a model or an adapter (adapter_config.json)"), std::string::npos);
  std::filesystem::rename(o.out + "/metrics.jsonl", o.out + "/metrics.bak");
  o.resume = true;
  EXPECT_NE(fault(o).find("holds a model or an adapter (adapter_config.json)"), std::string::npos);
  std::filesystem::rename(o.out + "/metrics.bak", o.out + "/metrics.jsonl");
  ASSERT_EQ(run_train(o), 0);
  o.lr = 0.5;
  o.seed = 3;
  const std::string message = fault(o);
  EXPECT_NE(message.find("lr: was \"0.01\", now \"0.5\""), std::string::npos) << message;
  EXPECT_NE(message.find("seed: was \"0\", now \"3\""), std::string::npos) << message;
}

// Neither another base of equal shapes nor another rank of experts may go on with a run; a copy of
// the base elsewhere may.
TEST_F(TrainTest, ResumeOnAnotherModelOrExpertRankIsRefused) {
  TrainOptions o = options("out");
  o.steps = 2;
  ASSERT_EQ(run_train(o), 0);
  o.resume = true;
  o.expert_rank = "full";
  EXPECT_NE(fault(o).find("expert-rank: was \"divided\", now \"full\""), std::string::npos);
  o.expert_rank = "divided";
  const std::string first = o.model;
  o.model = root_ + "/copy";
  fs::copy(first, o.model, fs::copy_options::recursive);
  EXPECT_EQ(run_train(o), 0);
  o.model = root_ + "/other";
  ASSERT_EQ(run_init({.config = root_ + "/config", .out = o.model, .seed = 2, .threads = 2}), 0);
  const std::string message = fault(o);
  EXPECT_NE(message.find("model: was"), std::string::npos) << message;
  EXPECT_EQ(message.find("data: was"), std::string::npos) << message;
}

TEST_F(TrainTest, BadOptionsAndDataAreNamedAndNothingStarts) {
  TrainOptions o = options("out");
  o.method = "qlora";
  EXPECT_EQ(fault(o), "--method: got 'qlora', want lora or full");
  o = options("out");
  o.optimizer = "muon";
  EXPECT_EQ(fault(o),
            "--optimizer muon: steps matrices of all parameters; give --method full with it");
  o = options("out");
  o.router_bias_rate = 1e-3;
  EXPECT_EQ(
      fault(o),
      "--router-bias-rate: the biases are the base model's, an adapter has no place for them; "
      "give --method full with it");
  o.method = "full";
  EXPECT_EQ(fault(o),
            "--router-bias-rate: no router of " + o.model + " (Qwen3ForCausalLM) has a bias");
  o = options("out");
  o.targets = "q_proj,nope";
  EXPECT_NE(fault(o).find("nope"), std::string::npos);
  o = options("out");
  o.device = "cuda";
  EXPECT_NE(fault(o).find("cuda"), std::string::npos);
  o = options("out");
  std::ofstream(o.data[0], std::ios::app) << "{\"prompt\": 1}\n";
  EXPECT_EQ(fault(o), o.data[0] + ":41: prompt: got a number, want a string");
  EXPECT_FALSE(fs::exists(o.out));
  o.model = root_ + "/absent";
  EXPECT_NE(fault(o).find("absent"), std::string::npos);
}

}  // namespace
}  // namespace strata::apps
