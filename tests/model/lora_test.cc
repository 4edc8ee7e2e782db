// SPDX-License-Identifier: Apache-2.0
// A fresh adapter has PEFT's initialisation, whatever the model's depth and the other modules are:
// linear A uniform in +-1/sqrt(in), B zero; embedding A zero, B standard normal.
#include "model/adapter/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "base/error.h"
#include "model/adapter/io.h"
#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::model {
namespace {

class FreshAdapter : public testing::Test {
 protected:
  LoraAdapter make(const std::vector<std::string>& targets) {
    LoraAdapter adapter(backend_, *model_.weights,
                        make_adapter_specs(model_.config, targets, 12, 16.0));
    adapter.initialise(7);
    return adapter;
  }

  CpuBackend backend_{choose_cpu_path(), 1};
  LoadedModel model_ = load_model(
      backend_, std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama31_v4_shards/model", {});
};

TEST_F(FreshAdapter, LinearAIsUniformInOneOverTheRootOfItsInputs) {
  const LoraAdapter adapter = make({"all-linear"});
  for (const LoraModule& module : adapter.modules()) {
    const auto count = static_cast<size_t>(module.a.rows() * module.a.cols());
    const double bound = 1 / std::sqrt(static_cast<double>(module.a.cols()));
    double largest = 0, squares = 0;
    for (size_t i = 0; i < count; ++i) {
      const double value = module.a.f32()[i];
      largest = std::max(largest, std::abs(value));
      squares += value * value;
    }
    // 500 draws or more come within 2 % of the bound, but for a chance of 0.98^500 = 4e-5 each; the
    // seed is fixed. The variance of a uniform value is bound^2 / 3; four standard errors are 16 %.
    EXPECT_GE(count, 500u) << module.path;
    EXPECT_LE(largest, bound * (1 + 1e-6)) << module.path;
    EXPECT_GE(largest, bound * 0.98) << module.path;
    EXPECT_NEAR(squares / static_cast<double>(count) / (bound * bound / 3), 1, 0.16) << module.path;
    for (int64_t i = 0; i < module.b.rows() * module.b.cols(); ++i) {
      ASSERT_EQ(module.b.f32()[i], 0.0f) << module.path;
    }
  }
}

TEST_F(FreshAdapter, EmbeddingAIsZeroAndBIsNormal) {
  const LoraAdapter adapter = make({"embed_tokens"});
  const LoraModule& module = *adapter.find_module(-1, kEmbedding);
  for (int64_t i = 0; i < module.a.rows() * module.a.cols(); ++i) {
    ASSERT_EQ(module.a.f32()[i], 0.0f);
  }
  const int64_t count = module.b.rows() * module.b.cols();
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += double{module.b.f32()[i]} * module.b.f32()[i];
  // The variance of a normal value squared is 2: four standard errors of the mean.
  const double wide = 4 * std::sqrt(2.0 / static_cast<double>(count));
  EXPECT_NEAR(squares / static_cast<double>(count), 1, wide);
}

// A module's values come from the seed and its own path.
TEST_F(FreshAdapter, OtherModulesDoNotMatter) {
  constexpr int kQProj = 0;  // the first target of a layer
  const LoraAdapter all = make({"all-linear"}), few = make({"q_proj"});
  for (int64_t layer = 0; layer < model_.config.num_layers(); ++layer) {
    const LoraModule& a = *all.find_module(layer, kQProj);
    const LoraModule& b = *few.find_module(layer, kQProj);
    ASSERT_EQ(a.a.shape, b.a.shape);
    EXPECT_TRUE(std::equal(a.a.f32(), a.a.f32() + a.a.rows() * a.a.cols(), b.a.f32()));
  }
  EXPECT_NE(all.find_module(0, kQProj)->a.f32()[0], all.find_module(1, kQProj)->a.f32()[0]);
}

// The machine's memory, of which there is none left when `is_full`.
class FullMemory : public Allocator {
 public:
  void* allocate(int64_t bytes) override {
    if (is_full) throw Error(ErrorCode::kResourceExhausted, "full");
    return cpu_allocator().allocate(bytes);
  }
  void release(void* data, int64_t bytes) override { cpu_allocator().release(data, bytes); }
  bool is_full = false;
};

TEST(LoraAdapter, TrainsOnceThereIsMemoryForItsGradients) {
  FullMemory memory;
  CpuBackend backend(choose_cpu_path(), 1, memory);
  const LoadedModel model = load_model(
      backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/llama31_v4_shards/model", {});
  LoraAdapter adapter(backend, *model.weights,
                      make_adapter_specs(model.config, {"all-linear"}, 4, 8.0));
  memory.is_full = true;
  EXPECT_THROW(adapter.enable_training(), Error);
  EXPECT_FALSE(adapter.trains());
  memory.is_full = false;
  adapter.enable_training();
  EXPECT_TRUE(adapter.trains());
  for (const LoraModule& module : adapter.modules()) EXPECT_FALSE(module.d_b.empty());
  EXPECT_EQ(adapter.step_items().size(), adapter.modules().size());
}

}  // namespace
}  // namespace strata::model
