// SPDX-License-Identifier: Apache-2.0
// Exported adapters as tinker_cookbook.weights reads them: stacked experts, and lora_alpha / r of
// the config as the scale of every module.
#include <gmock/gmock.h>

#include <map>

#include "checkpoint/gguf/gguf_file.h"
#include "model/adapter/export.h"
#include "model/adapter/io.h"
#include "model/export/write_gguf_lora.h"
#include "model/weights/no_layers.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using strata::testing::TempDir;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// scale * B A of every module; of experts by expert, gate and up apart.
using Deltas = std::map<std::string, std::vector<double>>;

Deltas deltas_of(const LoraAdapter& adapter) {
  Deltas out;
  for (const LoraModule& m : adapter.modules()) {
    const int64_t rank = m.spec.rank;
    const int64_t in = m.a.shape[m.num_experts > 0 ? 2 : 1];
    const int64_t rows = m.b.shape[m.num_experts > 0 ? 1 : 0] / m.num_halves;
    for (int64_t piece = 0; piece < std::max<int64_t>(1, m.num_experts) * m.num_halves; ++piece) {
      const int64_t expert = piece / m.num_halves;
      const float* a = m.a.f32() + expert * rank * in;
      const float* b = m.b.f32() + piece * rows * rank;
      std::string name = m.path;
      if (m.num_halves == 2) {
        name = name.substr(0, name.rfind('.')) + (piece % 2 == 0 ? ".gate_proj" : ".up_proj");
      }
      std::vector<double>& delta = out[name + "[" + std::to_string(expert) + "]"];
      for (int64_t i = 0; i < rows * in; ++i) {
        double sum = 0.0;
        for (int64_t j = 0; j < rank; ++j) {
          sum += static_cast<double>(b[i / in * rank + j]) * a[j * in + i % in];
        }
        delta.push_back(m.spec.scale * sum);
      }
    }
  }
  return out;
}

class AdapterExport : public ::testing::Test {
 protected:
  CpuBackend backend_{choose_cpu_path(), 1};
  std::string case_ = std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3_moe/";
  LoadedModel model_ = load_model(backend_, case_ + "model", {});
  TempDir dir_;

  void expect_same_meaning(const LoraAdapter& adapter, const std::string& exported) {
    const PeftAdapter file(exported);
    const double scale = file.config().lora_alpha / static_cast<double>(file.config().r);
    for (const PeftModule& module : file.modules()) {
      EXPECT_DOUBLE_EQ(module.scaling, scale) << module.module_path;
      const bool of_experts = module.module_path.find(".mlp.experts.") != std::string::npos;
      EXPECT_EQ(module.form, of_experts ? PeftForm::kStacked : PeftForm::kPlain);
      EXPECT_THAT(module.a.name, EndsWith(".lora_A.weight"));
      EXPECT_THAT(module.a.name, Not(HasSubstr("experts.gate")));
    }
    const Deltas want = deltas_of(adapter);
    const Deltas got = deltas_of(*load_adapter(backend_, model_, exported));
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, values] : want) {
      ASSERT_TRUE(got.contains(name)) << name;
      const std::vector<double>& ours = got.at(name);
      ASSERT_EQ(ours.size(), values.size()) << name;
      double most = 0.0;
      for (const double value : values) most = std::max(most, std::abs(value));
      EXPECT_GT(most, 0.0) << name;
      // B is rounded once where the two scales are no power of two apart.
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(ours[i], values[i], 1e-6 * most) << name;
    }
  }
};

TEST_F(AdapterExport, EveryFormOfExpertsMeansTheSame) {
  for (const char* name : {"a", "b", "c"}) {
    SCOPED_TRACE(name);
    const auto adapter = load_adapter(backend_, model_, case_ + name);
    save_adapter_for_tinker(*adapter, dir_.file(name), "base");
    expect_same_meaning(*adapter, dir_.file(name));
  }
}

// Experts of a fresh adapter have a rank of their own, and a scale that goes with it.
TEST_F(AdapterExport, ExpertsOfASmallerRankMeanTheSame) {
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"all-linear"}, {"gate_proj", "up_proj", "down_proj", "lm_head"}}) {
    LoraAdapter adapter(backend_, *model_.weights,
                        make_adapter_specs(model_.config, targets, 12, 32.0));
    adapter.initialise(7);
    for (LoraModule& module : adapter.modules()) {
      if (module.num_experts > 0) {
        ASSERT_EQ(module.spec.rank, 2);
      }
      for (int64_t i = 0; i < module.b.shape.num_elements(); ++i) {
        module.b.f32()[i] = 0.01f * static_cast<float>(i % 7 - 3);
      }
    }
    const std::string dir = dir_.file(targets[0]);
    save_adapter_for_tinker(adapter, dir, "base");
    expect_same_meaning(adapter, dir);
  }
}

// As alpha_pattern may say: lora_alpha is 0, and that of experts is not.
TEST_F(AdapterExport, ExpertsMeanTheSameWhereOthersDoNothing) {
  LoraAdapter adapter(backend_, *model_.weights,
                      make_adapter_specs(model_.config, {"all-linear"}, 12, 32.0));
  adapter.initialise(7);
  for (LoraModule& module : adapter.modules()) {
    if (module.num_experts == 0) module.spec.scale = 0.0;
    std::fill_n(module.b.f32(), module.b.shape.num_elements(), 0.01f);
  }
  save_adapter_for_tinker(adapter, dir_.file("stacked"), "base");
  EXPECT_EQ(deltas_of(*load_adapter(backend_, model_, dir_.file("stacked"))), deltas_of(adapter));
}

// An adapter that does nothing stays one: its B are numbers.
TEST_F(AdapterExport, AnAlphaOfZeroLeavesNumbers) {
  LoraAdapter adapter(backend_, *model_.weights,
                      make_adapter_specs(model_.config, {"all-linear"}, 12, /*alpha=*/0.0));
  adapter.initialise(7);
  save_adapter_for_tinker(adapter, dir_.file("stacked"), "base");
  const auto exported = load_adapter(backend_, model_, dir_.file("stacked"));
  for (const LoraModule& module : exported->modules())
    for (int64_t i = 0; i < module.b.shape.num_elements(); ++i)
      ASSERT_EQ(module.b.f32()[i], 0.0f) << module.path;
  save_adapter(adapter, dir_.file("peft"), "base");
  const LoadedModel names =
      load_model(backend_, case_ + "model", {.compute_dtype = DType::kF32, .part = kNoLayers});
  write_gguf_lora(backend_, names, dir_.file("peft"), dir_.file("lora.gguf"));
  const GgufFile file(dir_.file("lora.gguf"));
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(".lora_b")) continue;
    std::vector<float> b(static_cast<size_t>(tensor.end - tensor.begin) / sizeof(float));
    file.read_bytes(tensor, 0, std::as_writable_bytes(std::span(b)));
    for (const float value : b) ASSERT_EQ(value, 0.0f) << tensor.name;
  }
}

}  // namespace
}  // namespace strata::model
