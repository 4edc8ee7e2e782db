// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction beside the decoder: how a batch is run moves no bit of its losses and
// gradients, nor it any bit of the decoder's; and biases of routers that follow their loads, beside
// the definition's choices (tools/golden/make_deepseek_v4_mtp.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "model/blocks/experts/moe.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

constexpr const char* kModel = "deepseek_v4_mtp";
// Reads what the final norm made, where the other reads the last state.
constexpr const char* kOfHidden = "qwen3_5_mtp";
using Values = std::vector<std::vector<float>>;

class MtpRuns {
 public:
  MtpRuns(const char* model, DType dtype, int threads, model::UseMtp mtp = model::UseMtp::kAlways)
      : engine_(tiny_engine({.model = model, .dtype = dtype, .threads = threads, .mtp = mtp})) {
    slot_ = engine_->create_adapter(tiny_specs(*engine_, 4), 3);
    stir(*engine_, engine_->adapter(slot_));
    // Of one token there is nothing to predict, and of two there is one target.
    for (const int64_t count : {30, 1, 2, 17}) {
      const bool adapted = count != 17;
      batch_.sequences.push_back(tiny_sequence(*engine_, count, static_cast<uint32_t>(count),
                                               adapted ? slot_ : api::AdapterSlot::kBase));
    }
    batch_.mtp_weight = mtp == model::UseMtp::kNever ? 0.0f : 0.3f;
  }

  Engine& engine() { return *engine_; }
  api::Batch& batch() { return batch_; }
  // The decoder's logprobs, then losses of multi-token prediction, then gradients.
  Values run(int64_t pass_tokens, const model::Recompute& recompute) {
    engine_->set_pass_options(pass_tokens, recompute);
    Values out;
    batch_.gradients = api::Gradients::kAdapters;
    const api::BatchResult result = run_batch(*engine_, batch_);
    EXPECT_EQ(engine_->backend().scratch().high_water(), engine_->last_plan().bytes);
    for (const auto& sequence : result.sequences) out.push_back(sequence.logprobs);
    for (const auto& sequence : result.sequences) out.push_back(sequence.mtp_losses);
    engine_->adapter(slot_).merge_gradients_apart(engine_->backend());
    out.push_back(copy_of(engine_->adapter(slot_).gradients()));
    engine_->adapter(slot_).drop_gradients();
    batch_.gradients = api::Gradients::kParameters;
    run_batch(*engine_, batch_);
    EXPECT_EQ(engine_->backend().scratch().high_water(), engine_->last_plan().bytes);
    for (auto& [name, values] : take_base_gradients(*engine_)) out.push_back(values);
    return out;
  }

 private:
  std::unique_ptr<Engine> engine_;
  api::AdapterSlot slot_;
  api::Batch batch_;
};

struct MtpCase {
  const char* model;
  DType dtype;
};
class Mtp : public testing::TestWithParam<MtpCase> {
 protected:
  static MtpRuns runs_on(int threads, model::UseMtp mtp = model::UseMtp::kAlways) {
    return {GetParam().model, GetParam().dtype, threads, mtp};
  }
};

TEST_P(Mtp, PassesThreadsAndRecomputeMoveNoBit) {
  const Values wanted = runs_on(1).run(75, model::Recompute::kNone);
  for (const int threads : {1, 2}) {
    MtpRuns runs = runs_on(threads);
    for (const int64_t pass_tokens : {1, 31, 33, 75}) {
      EXPECT_EQ(runs.run(pass_tokens, model::Recompute::kNone), wanted) << pass_tokens;
      EXPECT_EQ(runs.run(pass_tokens, model::Recompute::kFull), wanted) << pass_tokens;
    }
    for (const model::RecomputePreset& preset : model::recompute_presets()) {
      EXPECT_EQ(runs.run(75, model::Recompute::keeping(preset.tags)), wanted) << preset.name;
    }
  }
}

TEST_P(Mtp, ASequenceAloneIsTheSame) {
  MtpRuns runs = runs_on(1);
  const api::BatchResult together = run_batch(runs.engine(), runs.batch());
  for (size_t s = 0; s < together.sequences.size(); ++s) {
    api::Batch alone = {.sequences = {runs.batch().sequences[s]}, .mtp_weight = 0.3f};
    EXPECT_EQ(run_batch(runs.engine(), alone).sequences[0].mtp_losses,
              together.sequences[s].mtp_losses);
    EXPECT_EQ(together.sequences[s].mtp_losses.back(), 0.0f);
  }
  EXPECT_GT(together.mtp_loss_sum, 1.0);
}

// The decoder of a model that is loaded without its layer.
TEST_P(Mtp, TheDecoderDoesNotNoticeIt) {
  MtpRuns with = runs_on(1), without = runs_on(1, model::UseMtp::kNever);
  for (MtpRuns* runs : {&with, &without}) {
    for (api::Sequence& sequence : runs->batch().sequences) sequence.slot = api::AdapterSlot::kBase;
  }
  const api::BatchResult a = run_batch(with.engine(), with.batch());
  const api::BatchResult b = run_batch(without.engine(), without.batch());
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    EXPECT_EQ(a.sequences[s].logprobs, b.sequences[s].logprobs);
    EXPECT_EQ(a.sequences[s].losses, b.sequences[s].losses);
    EXPECT_TRUE(b.sequences[s].mtp_losses.empty());
  }
  EXPECT_EQ(a.loss_sum, b.loss_sum);
}

INSTANTIATE_TEST_SUITE_P(
    All, Mtp,
    testing::Values(MtpCase{kModel, DType::kF32}, MtpCase{kModel, DType::kBF16},
                    MtpCase{kOfHidden, DType::kF32}, MtpCase{kOfHidden, DType::kBF16},
                    MtpCase{"qwen3_5_moe_mtp", DType::kBF16}),
    [](const auto& info) {
      return fmt::format("{}_{}", info.param.model, dtype_name(info.param.dtype));
    });

std::string fault(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MtpFaults, WhatIsNotThereIsSaid) {
  const auto load = [](const char* model, model::UseMtp mtp) {
    return tiny_engine({.model = model, .mtp = mtp});
  };
  EXPECT_NE(
      fault([&] { load("deepseek_v4", model::UseMtp::kAlways); }).find("config.json has none"),
      std::string::npos);  // its config says that there is none
  EXPECT_NE(fault([&] { load("qwen3", model::UseMtp::kAlways); }).find("no layer of multi-token"),
            std::string::npos);
  // transformers saves no tensors of it.
  EXPECT_NE(fault([&] { load("qwen3_5", model::UseMtp::kAlways); }).find("has no tensor mtp.*"),
            std::string::npos);
  EXPECT_FALSE(load("qwen3_5", model::UseMtp::kIfThere)->config().use_mtp);
  EXPECT_FALSE(load("deepseek_v4", model::UseMtp::kIfThere)->config().use_mtp);
  EXPECT_TRUE(load(kOfHidden, model::UseMtp::kIfThere)->config().use_mtp);
  EXPECT_TRUE(load(kModel, model::UseMtp::kIfThere)->config().use_mtp);
  MtpRuns runs(kModel, DType::kF32, 1, model::UseMtp::kNever);
  runs.batch().mtp_weight = 0.5f;
  EXPECT_EQ(fault([&] { run_batch(runs.engine(), runs.batch()); }),
            "mtp_weight: the model has no layer of multi-token prediction");
}

// An adapter is loaded whole or not at all.
TEST(MtpFaults, AnAdaptersModulesNeedTheLayer) {
  const auto modules = [](const std::string& model, model::UseMtp mtp) {
    const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + model + "/b";
    const auto engine = tiny_engine({.model = model, .mtp = mtp});
    return engine->adapter(engine->load_adapter(dir)).modules().size();
  };
  for (const char* model : {kModel, kOfHidden}) {
    EXPECT_EQ(modules(model, model::UseMtp::kAlways), 5u);
    const std::string refused = fault([&] { modules(model, model::UseMtp::kNever); });
    EXPECT_NE(refused.find("module 'model.mtp.0."), std::string::npos) << refused;
    EXPECT_NE(refused.find("loaded without its layer of multi-token prediction"), std::string::npos)
        << refused;
  }
}

boost::json::value read_json(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return boost::json::parse(text.str());
}

TEST(RouterBias, FollowsTheLoadsOfTheDefinitionsChoices) {
  const boost::json::value golden =
      read_json(std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + kModel + "/router_bias.json");
  for (const model::Recompute& recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    const auto engine =
        tiny_engine({.model = kModel, .dtype = DType::kF32, .mtp = model::UseMtp::kAlways});
    engine->set_pass_options(24, recompute);  // two passes
    engine->enable_base_steps({.router_bias_rate = golden.at("rate").to_number<double>()});
    api::Batch batch = {.gradients = api::Gradients::kParameters, .mtp_weight = 1.0f};
    for (const auto& tokens : golden.at("sequences").as_array()) {
      api::Datum datum = {.tokens = boost::json::value_to<std::vector<int32_t>>(tokens)};
      datum.targets = datum.tokens;
      batch.sequences.push_back({.datum = &keep(std::move(datum))});
    }
    for (int64_t step = 0; step < golden.at("steps").as_int64(); ++step) {
      EXPECT_EQ(run_batch(*engine, batch).num_passes, 2);
      ASSERT_TRUE(take_step(*engine, api::AdapterSlot::kBase, {.lr = 0}).stepped);
    }
    const auto& biases = golden.at("biases").as_object();
    size_t found = 0;
    for (const model::Parameter& parameter : engine->model().weights->table()) {
      const auto* want = biases.if_contains(parameter.name);
      if (want == nullptr) continue;
      ++found;
      EXPECT_EQ(copy_of(parameter.values), boost::json::value_to<std::vector<float>>(*want))
          << parameter.name;
    }
    EXPECT_EQ(found, biases.size());
    EXPECT_EQ(found, 2u);  // of the scored layer and of multi-token prediction
  }
}

// DeepSeek-V3's routers too; what is not asked for stays.
TEST(RouterBias, EveryRowIsCountedOnce) {
  const auto engine = tiny_engine({.model = "deepseek_moe", .dtype = DType::kF32});
  engine->set_pass_options(10, model::Recompute::kFull);
  engine->enable_base_steps({.router_bias_rate = 0.5});
  api::Batch batch = {.gradients = api::Gradients::kParameters};
  for (const int64_t count : {9, 4, 12})
    batch.sequences.push_back(tiny_sequence(*engine, count, 5, api::AdapterSlot::kBase));
  run_batch(*engine, batch);
  batch.gradients = api::Gradients::kNone;
  run_batch(*engine, batch);  // what is only scored has no load
  const auto& table = engine->model().weights->table();
  const auto& loads = engine->base_trainer().gradients()->expert_loads;
  int64_t routers = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].row == nullptr || !table[i].row->balances) continue;
    ++routers;
    const auto* moe =
        engine->config().find_block_config<model::MoeConfig>(table[i].layer, model::kMoe);
    ASSERT_NE(moe, nullptr);
    int64_t rows = 0;
    for (const int64_t load : loads[i]) rows += load;
    EXPECT_EQ(rows, 25 * moe->top_k) << table[i].name;
  }
  EXPECT_GE(routers, 1);
  EXPECT_EQ(std::ssize(engine->base_trainer().router_bias_indices()), routers);
}

}  // namespace
}  // namespace strata::engine
