// SPDX-License-Identifier: Apache-2.0
// Advantages, losses and gradients of groups of samples against TRL's GRPOTrainer
// (tools/golden/make_grpo.py).
#include "trainer/grpo.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "model/adapter/tensors.h"
#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

const std::string kSource = STRATA_SOURCE_DIR, kGolden = kSource + "/tests/golden/grpo";

// TRL makes advantages in f32, of magnitude 1: a mean, a deviation and a quotient, of rewards of
// magnitude 1.
constexpr double kAdvantageBar = 1e-6;
// A token's logprob in f32 is off by 8e-6 at most (logits of about 20, and the sum of 4096 exps),
// its ratio by as much of itself, which is 1.7 at most, and cispo's loss by its logprob's error
// times ratio and advantage. All are means over tokens with advantages of 1.3 at most.
constexpr double kLossBar = 8e-6 * 1.7 * 1.3;
// Of the norm of all gradients: so many roundings of four layers, times what slopes are off by.
constexpr double kGradientBar = 2e-4;

class Grpo : public ::testing::Test {
 protected:
  void SetUp() override {
    expected_ = json::parse(read_file(kGolden + "/expected.json", 1 << 20)).as_object();
    size_t next = 0;
    for (const json::value& rewards : expected_.at("rewards").as_array()) {
      RolloutGroup& group = groups_.emplace_back();
      for (const json::value& reward : rewards.as_array()) {
        const json::value& row = expected_.at("rows").as_array()[next++];
        group.prompt = json::value_to<std::vector<int32_t>>(row.at("prompt"));
        Rollout& rollout = group.rollouts.emplace_back();
        rollout.tokens = json::value_to<std::vector<int32_t>>(row.at("completion"));
        rollout.logprobs = json::value_to<std::vector<float>>(row.at("logprobs"));
        if (!reward.is_null()) rollout.reward = reward.to_number<double>();
      }
    }
  }

  json::object expected_;
  std::vector<RolloutGroup> groups_;
};

TEST_F(Grpo, AdvantagesAreTrls) {
  size_t next = 0;
  for (const RolloutGroup& group : groups_) {
    const GroupAdvantages advantages = group_advantages(group);
    for (const float value : advantages.values) {
      const json::value& row = expected_.at("rows").as_array()[next++];
      EXPECT_NEAR(value, row.at("advantage").to_number<double>(), kAdvantageBar) << next;
    }
  }
  EXPECT_EQ(next, 12u);
  EXPECT_FALSE(group_advantages(groups_[0]).are_equal);
  EXPECT_EQ(group_advantages(groups_[0]).values[3], 0.0f);  // it has no reward
  EXPECT_TRUE(group_advantages(groups_[2]).are_equal);
}

// A mean of equal numbers may be another number, by its rounding.
TEST_F(Grpo, EqualRewardsGiveExactlyNothing) {
  RolloutGroup group = {.rollouts = std::vector<Rollout>(7)};
  for (Rollout& rollout : group.rollouts) rollout.reward = 0.1;
  EXPECT_EQ(group_advantages(group).values, std::vector<float>(7));
  for (Rollout& rollout : group.rollouts) rollout.reward.reset();
  group.rollouts[2].reward = 3.0;
  EXPECT_TRUE(group_advantages(group).are_equal);
  EXPECT_EQ(group_advantages(group).values, std::vector<float>(7));
}

TEST_F(Grpo, WithoutAnAdvantageTheFirstRolloutStandsForAll) {
  const std::vector<RolloutGroup> equal = {groups_[2]};
  const std::vector<api::Datum> data = make_rollout_data(equal, {}, 16);
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(data[0].inputs[api::LossInput::kAdvantages], std::vector<float>(data[0].tokens.size()));
}

TEST_F(Grpo, LossesAndGradientsAreTrls) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), 2);
  auto model =
      model::load_model(*backend, kSource + "/models/tiny-qwen3", {.compute_dtype = DType::kF32});
  engine::Engine engine(std::move(backend), std::move(model), {});
  engine::Runner runner(engine);
  const api::AdapterSlot slot = runner.load_adapter(kSource + "/tests/golden/eval/adapter");
  const SafetensorsFile gradients(kGolden + "/gradients.safetensors");
  EXPECT_EQ(expected_.at("losses").as_object().size(), 6u);
  for (const auto& [name, want] : expected_.at("losses").as_object()) {
    SCOPED_TRACE(std::string(name));
    const size_t space = name.find(' ');
    const GrpoLoss choice = {.type = std::string(name.substr(0, space)),
                             .importance = std::string(name.substr(space + 1))};
    const std::vector<api::Datum> data =
        make_rollout_data(groups_, choice, expected_.at("max_tokens").to_number<int64_t>());
    EXPECT_EQ(data.size(), 7u);  // 12 less a group of equal rewards and one without
    api::Batch batch = {.gradients = api::Gradients::kAdapters};
    for (const api::Datum& datum : data)
      batch.sequences.push_back({.datum = &datum, .slot = slot, .loss = loss_of_rollouts(choice)});
    EXPECT_NEAR(runner.run(batch).loss_sum, want.to_number<double>(), kLossBar);
    model::LoraAdapter& adapter = engine.adapter(slot);
    double error = 0, norm = 0;
    size_t count = 0;
    for (const model::AdapterTensor& tensor : model::adapter_tensors(adapter)) {
      const model::LoraModule& module = adapter.modules()[tensor.module];
      std::vector<float> got(static_cast<size_t>(tensor.shape.num_elements()));
      std::vector<float> right(got.size());
      model::copy_to_stored(module, tensor, tensor.is_b ? module.d_b : module.d_a, got.data());
      const TensorInfo* info = gradients.find(std::string(name) + "/" + tensor.name);
      ASSERT_NE(info, nullptr) << tensor.name;
      gradients.read_f32(*info, 0, std::ssize(right), right.data());
      for (size_t i = 0; i < got.size(); ++i) {
        const double off = static_cast<double>(got[i]) - static_cast<double>(right[i]);
        error += off * off;
        norm += static_cast<double>(right[i]) * static_cast<double>(right[i]);
      }
      count += got.size();
    }
    EXPECT_EQ(count, static_cast<size_t>(adapter.num_parameters()));
    EXPECT_GT(norm, 0.0);
    EXPECT_LT(std::sqrt(error / norm), kGradientBar);
    adapter.drop_gradients();
  }
}

}  // namespace
}  // namespace strata::apps
