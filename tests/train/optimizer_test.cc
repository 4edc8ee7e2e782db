// A step of an adapter whose modules are small and large: every value moves as AdamW says, every
// gradient is zero again, and the copies that products read are those of the new values.
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/adapter_io.h"

namespace strata::train {
namespace {

constexpr AdamWOptions kOptions = {.lr = 1e-2, .weight_decay = 0.1};

std::unique_ptr<model::LoraAdapter> make_adapter(Backend& backend,
                                                 const model::LoadedModel& model) {
  auto adapter = std::make_unique<model::LoraAdapter>(
      *model.weights, model::adapter_specs(model.config, {"all-linear", "lm_head"}, 4, 8.0),
      backend.panel_width());
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
    Backend backend(choose_cpu_path(), threads);
    const model::LoadedModel model =
        model::load_model(backend, dir, {.compute_dtype = DType::kBF16});
    const auto before = make_adapter(backend, model);
    const auto adapter = make_adapter(backend, model);
    ASSERT_TRUE(step_adapter(backend, *adapter, kOptions).stepped);
    const int64_t count = adapter->num_parameters();
    ASSERT_GT(adapter->head()->a.shape.num_elements() + adapter->head()->b.shape.num_elements(),
              1 << 17);
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

}  // namespace
}  // namespace strata::train
