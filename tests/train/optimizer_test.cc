// SPDX-License-Identifier: Apache-2.0
// A step of an adapter whose modules are small and large: every value moves as AdamW says, every
// gradient is zero again, and the copies that products read are those of the new values.
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <regex>

#include "base/error.h"
#include "model/adapter/io.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/elementwise.h"

namespace strata::train {
namespace {

constexpr api::AdamW kOptions = {.lr = 1e-2, .weight_decay = 0.1};

std::unique_ptr<model::LoraAdapter> make_adapter(Backend& backend,
                                                 const model::LoadedModel& model) {
  auto adapter = std::make_unique<model::LoraAdapter>(
      backend, *model.weights,
      model::make_adapter_specs(model.config, {"all-linear", "lm_head"}, 4, 8.0));
  adapter->initialise(3);
  adapter->enable_training();
  const int64_t count = adapter->num_parameters();
  for (int64_t i = 0; i < count; ++i) {
    adapter->gradients().f32()[i] = 1e-3f * static_cast<float>(i % 11 - 5);
  }
  adapter->has_gradient = true;
  adapter->refresh(backend);
  return adapter;
}

bool same_bytes(const PanelView& a, const PanelView& b) {
  return a.num_bytes() == b.num_bytes() &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.num_bytes())) == 0;
}

TEST(StepAdapter, MovesSmallAndLargeModulesAlike) {
  const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3_wide/model";
  for (const int threads : {1, 2, 3}) {
    SCOPED_TRACE(threads);
    CpuBackend backend(choose_cpu_path(), threads);
    const model::LoadedModel model =
        model::load_model(backend, dir, {.compute_dtype = DType::kBF16});
    const auto before = make_adapter(backend, model);
    const auto adapter = make_adapter(backend, model);
    ASSERT_TRUE(step_adapter(backend, *adapter, kOptions).stepped);
    const int64_t count = adapter->num_parameters();
    const model::LoraModule& head = *adapter->find_module(-1, model::kHead);
    ASSERT_GT(head.a.shape.num_elements() + head.b.shape.num_elements(), 1 << 17);
    for (int64_t i = 0; i < count; ++i) {
      // The first step: corrected moments are g and g^2.
      const double g = before->gradients().f32()[i];
      const double p = before->parameters().f32()[i];
      const double move = g / (std::sqrt(g * g) + kOptions.eps) + kOptions.weight_decay * p;
      ASSERT_NEAR(adapter->parameters().f32()[i], p - kOptions.lr * (g == 0.0 ? 0.1 * p : move),
                  1e-6 * (std::abs(p) + kOptions.lr))
          << i;
      ASSERT_NEAR(adapter->first_moments().f32()[i], 0.1 * g, 1e-6 * std::abs(g)) << i;
      ASSERT_EQ(adapter->gradients().f32()[i], 0.0f) << i;
    }
    const auto fresh = make_adapter(backend, model);
    std::memcpy(fresh->parameters().data, adapter->parameters().data,
                static_cast<size_t>(adapter->parameters().num_bytes()));
    fresh->refresh(backend);
    for (size_t m = 0; m < fresh->modules().size(); ++m) {
      const model::LoraModule &got = adapter->modules()[m], &want = fresh->modules()[m];
      EXPECT_TRUE(same_bytes(got.a_panel, want.a_panel)) << want.path;
      EXPECT_TRUE(same_bytes(got.b_panel, want.b_panel)) << want.path;
      EXPECT_FALSE(same_bytes(got.b_panel, before->modules()[m].b_panel)) << want.path;
    }
  }
}

// The order that stages and ranks can keep: one double a row, rows ascending, A before B, modules
// in order. Workers and the size of a module move no bit.
TEST(StepAdapter, TheNormIsOneSumARow) {
  const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3_wide/model";
  for (const int threads : {1, 2, 7}) {
    CpuBackend backend(choose_cpu_path(), threads);
    const model::LoadedModel model =
        model::load_model(backend, dir, {.compute_dtype = DType::kF32});
    const auto adapter = make_adapter(backend, model);
    double total = 0.0;
    for (const model::LoraModule& module : adapter->modules()) {
      for (const TensorView& part : {module.d_a, module.d_b}) {
        double rows = 0.0;
        for (int64_t row = 0; row < part.rows(); ++row) {
          rows += ops::sum_of_squares(backend, part.slice_rows(row, row + 1));
        }
        total += rows;
      }
    }
    EXPECT_EQ(step_adapter(backend, *adapter, kOptions).grad_norm, std::sqrt(total)) << threads;
  }
}

// A file that could not be read may be there the next time: nothing is stepped before.
TEST(BaseTrainer, MastersThatCouldNotBeReadAreReadTheNextTime) {
  const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama2/model";
  CpuBackend backend(choose_cpu_path(), 1);
  model::LoadedModel model = model::load_model(backend, dir, {.compute_dtype = DType::kF32});
  BaseTrainer trainer(backend, *model.weights);
  size_t reads = 0;
  const auto fails = [&](size_t, int64_t, TensorView) {
    if (++reads == 3) throw Error(ErrorCode::kIo, "gone");
  };
  EXPECT_THROW(trainer.enable_steps(fails), Error);
  reads = 0;
  trainer.enable_steps([&](size_t index, int64_t first, TensorView out) {
    ++reads;
    model.weights->read_rows(backend, index, first, out);
  });
  EXPECT_EQ(reads, model.weights->table().size());
}

TEST(BaseTrainer, AGradientThatIsNotFiniteTouchesNoMaster) {
  const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama2/model";
  CpuBackend backend(choose_cpu_path(), 2);
  model::LoadedModel model = model::load_model(backend, dir, {.compute_dtype = DType::kF32});
  BaseTrainer trainer(backend, *model.weights);
  trainer.enable_steps([&](size_t index, int64_t first, TensorView out) {
    model.weights->read_rows(backend, index, first, out);
  });
  const TensorView masters = trainer.masters();
  const std::vector<float> before(masters.f32(), masters.f32() + masters.shape.num_elements());
  trainer.gradient(1).f32()[0] = std::numeric_limits<float>::quiet_NaN();
  trainer.has_gradient = true;
  EXPECT_THROW(trainer.step(backend, *model.weights, kOptions), Error);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), masters.f32()));
  EXPECT_EQ(trainer.num_steps, 0);
  EXPECT_FALSE(trainer.has_gradient);
  EXPECT_EQ(trainer.gradient(1).f32()[0], 0.0f);
  EXPECT_EQ(trainer.first_moments().f32()[0], 0.0f);
}

// DeepSeek-V4's table by names: matrices and the streams' fn by Muon, whose steps are not AdamW's
// of one lr an element; all else by AdamW.
TEST(BaseTrainer, MuonStepsTheMatricesOfDeepSeekV4) {
  const std::regex matrix(
      R"(.*\.((wq_a|wq_b|wkv|wo_a|wo_b|wgate|weights_proj|gate|w1|w2|w3|e_proj|)"
      R"(h_proj)\.weight|hc_(attn|ffn|head)_fn)|hc_head_fn)");
  const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/deepseek_v4_mtp/model";
  CpuBackend backend(choose_cpu_path(), 2);
  model::LoadedModel model = model::load_model(
      backend, dir, {.compute_dtype = DType::kF32, .mtp = model::UseMtp::kAlways});
  BaseTrainer trainer(backend, *model.weights);
  trainer.enable_steps(
      [&](size_t index, int64_t first, TensorView out) {
        model.weights->read_rows(backend, index, first, out);
      },
      {.muon = true});
  const TensorView masters = trainer.masters();
  const int64_t count = masters.shape.num_elements();
  const std::vector<float> before(masters.f32(), masters.f32() + count);
  for (int64_t i = 0; i < count; ++i) {
    trainer.gradients()->d_weight.front().f32()[i] =
        1e-3f * static_cast<float>(i % 23 - 11 + i % 2);
  }
  trainer.has_gradient = true;
  constexpr double kRate = 0.25;
  ASSERT_TRUE(trainer.step(backend, *model.weights, {.lr = kRate, .grad_clip_norm = 0}).stepped);
  int64_t of_adamw = 0;
  for (size_t i = 0; i < model.weights->table().size(); ++i) {
    const model::Parameter& parameter = model.weights->table()[i];
    if (parameter.buffer) continue;
    const TensorView now = trainer.master(i);
    const int64_t first = now.f32() - masters.f32();
    bool is_adamw = true;
    for (int64_t e = 0; e < now.shape.num_elements(); ++e) {
      const double moved =
          std::abs(static_cast<double>(now.f32()[e]) - before[static_cast<size_t>(first + e)]);
      is_adamw = is_adamw && (std::abs(moved - kRate) < 1e-5 || moved == 0);
    }
    EXPECT_EQ(is_adamw, !std::regex_match(parameter.name, matrix)) << parameter.name;
    of_adamw += is_adamw ? now.shape.num_elements() : 0;
  }
  EXPECT_EQ(trainer.num_second_moments(), of_adamw);
}

}  // namespace
}  // namespace strata::train
