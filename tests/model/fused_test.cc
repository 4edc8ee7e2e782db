// SPDX-License-Identifier: Apache-2.0
// Adapters of experts as PEFT loads them: what is written is, tensor by tensor, what a script built
// and loaded in PEFT (tools/golden/make_peft_form.py), and it comes back as the same adapter, bit
// by bit; a file of PEFT's own is read as the whole tensors that it holds; a changed file is
// refused.
#include "model/adapter/fused.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "model/adapter/io.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using strata::testing::error_of;
using strata::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGolden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/";

struct Case {
  const char* name;   // below peft_form
  const char* model;  // of goldens
  const char* pairs;  // the adapter with a pair of tensors for each expert
};
std::ostream& operator<<(std::ostream& out, const Case& of) { return out << of.name; }

std::vector<float> values_of(const PeftAdapter& peft, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.num_elements()));
  peft.file().read_f32(tensor, 0, std::ssize(values), values.data());
  return values;
}

std::multiset<std::string> sorted(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

void expect_same_files(const std::string& got_dir, const std::string& want_dir) {
  const PeftAdapter got(got_dir), want(want_dir);
  EXPECT_EQ(sorted(got.config().target_modules), sorted(want.config().target_modules));
  EXPECT_EQ(sorted(got.config().target_parameters), sorted(want.config().target_parameters));
  EXPECT_EQ(got.config().use_rslora, want.config().use_rslora);
  ASSERT_EQ(got.file().tensors().size(), want.file().tensors().size());
  ASSERT_EQ(got.modules().size(), want.modules().size());
  for (size_t i = 0; i < want.modules().size(); ++i) {
    const PeftModule &is = got.modules()[i], &was = want.modules()[i];
    SCOPED_TRACE(was.module_path);
    EXPECT_EQ(is.module_path, was.module_path);
    EXPECT_EQ(is.form, was.form);
    EXPECT_EQ(is.rank, was.rank);
    EXPECT_EQ(is.alpha, was.alpha);
    EXPECT_EQ(is.a.name, was.a.name);
    EXPECT_EQ(is.b.name, was.b.name);
    ASSERT_EQ(is.a.shape, was.a.shape);
    ASSERT_EQ(is.b.shape, was.b.shape);
    EXPECT_EQ(values_of(got, is.a), values_of(want, was.a));
    EXPECT_EQ(values_of(got, is.b), values_of(want, was.b));
  }
}

// Modules by path, since files order them.
void expect_same_adapter(const LoraAdapter& got, const LoraAdapter& want) {
  ASSERT_EQ(got.modules().size(), want.modules().size());
  for (const LoraModule& was : want.modules()) {
    SCOPED_TRACE(was.path);
    const LoraModule* is = got.find_module(was.spec.layer, was.spec.target);
    ASSERT_NE(is, nullptr);
    EXPECT_EQ(is->spec.rank, was.spec.rank);
    EXPECT_EQ(is->spec.alpha, was.spec.alpha);
    EXPECT_EQ(is->spec.scale, was.spec.scale);
    ASSERT_EQ(is->a.shape, was.a.shape);
    ASSERT_EQ(is->b.shape, was.b.shape);
    const auto bytes = [](const TensorView& view) { return static_cast<size_t>(view.num_bytes()); };
    EXPECT_EQ(std::memcmp(is->a.data, was.a.data, bytes(was.a)), 0);
    EXPECT_EQ(std::memcmp(is->b.data, was.b.data, bytes(was.b)), 0);
  }
}

std::string bytes_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void replace(const std::string& file, const std::string& from, const std::string& to) {
  std::string bytes = bytes_of(file);
  const size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  bytes.replace(at, from.size(), to);
  std::ofstream(file, std::ios::binary) << bytes;
}

class ExpertsForPeft : public ::testing::TestWithParam<Case> {
 protected:
  CpuBackend backend_{choose_cpu_path(), 1};
  LoadedModel model_ = load_model(backend_, kGolden + GetParam().model + "/model", {});
  std::string pairs_ = kGolden + GetParam().pairs;
  std::string peft_ = kGolden + "peft_form/" + GetParam().name + "/peft";
  TempDir dir_;
};

TEST_P(ExpertsForPeft, IsWhatPeftLoads) {
  save_adapter_for_peft(*load_adapter(backend_, model_, pairs_), model_.config, dir_.file("out"),
                        "");
  expect_same_files(dir_.file("out"), peft_);
}

TEST_P(ExpertsForPeft, ComesBackAsTheSameAdapter) {
  const auto adapter = load_adapter(backend_, model_, pairs_);
  save_adapter_for_peft(*adapter, model_.config, dir_.file("out"), "base");
  const auto again = load_adapter(backend_, model_, dir_.file("out"));
  expect_same_adapter(*again, *adapter);
  for (const LoraModule& module : again->modules()) {
    const LoraModule* was = adapter->find_module(module.spec.layer, module.spec.target);
    EXPECT_EQ(module.a_name, was->a_name);
    EXPECT_EQ(module.form, was->form);
  }
  save_adapter_for_peft(*again, model_.config, dir_.file("again"), "base");
  expect_same_files(dir_.file("again"), dir_.file("out"));
}

TEST_P(ExpertsForPeft, ItsWeightsLoadIntoAnAdapterOfTheSameModules) {
  const auto adapter = load_adapter(backend_, model_, pairs_);
  save_adapter_for_peft(*adapter, model_.config, dir_.file("out"), "base");
  std::vector<LoraModuleSpec> specs;
  for (const LoraModule& module : adapter->modules()) specs.push_back(module.spec);
  std::reverse(specs.begin(), specs.end());
  LoraAdapter to(backend_, *model_.weights, specs);
  load_adapter_weights(model_, dir_.file("out"), to);
  expect_same_adapter(to, *adapter);
}

// Without the metadata gate_up_proj is one module of the rank that the file has.
TEST_P(ExpertsForPeft, AFileOfPeftsOwnIsReadAsItsWholeTensors) {
  const auto adapter = load_adapter(backend_, model_, peft_);
  int whole = 0;
  for (const LoraModule& module : adapter->modules()) {
    if (module.num_experts > 0) {
      EXPECT_EQ(module.form, ExpertForm::kFused);
    }
    whole += module.num_halves == 2 ? 1 : 0;
  }
  EXPECT_GT(whole, 0);
  save_adapter(*adapter, dir_.file("out"), "");
  const auto again = load_adapter(backend_, model_, dir_.file("out"));
  expect_same_adapter(*again, *adapter);
}

// As what was trained on from such a file is written.
TEST_P(ExpertsForPeft, AFileOfPeftsOwnIsWrittenAsItWas) {
  save_adapter_for_peft(*load_adapter(backend_, model_, peft_), model_.config, dir_.file("out"),
                        "");
  expect_same_files(dir_.file("out"), peft_);
}

// With use_rslora a scale is alpha / sqrt(rank), and gate_up_proj has twice the rank of its halves.
TEST_P(ExpertsForPeft, ScalesOfRsloraComeBack) {
  for (const std::string& from : {pairs_, peft_}) {
    std::filesystem::copy(from, dir_.file("rslora"));
    replace(dir_.file("rslora/adapter_config.json"), "\"use_rslora\": false",
            "\"use_rslora\": true");
    const auto adapter = load_adapter(backend_, model_, dir_.file("rslora"));
    save_adapter_for_peft(*adapter, model_.config, dir_.file("out"), "base");
    const PeftAdapter file(dir_.file("out"));
    EXPECT_TRUE(file.config().use_rslora);
    for (const PeftModule& module : file.modules())
      EXPECT_EQ(module.scaling, module.alpha / std::sqrt(static_cast<double>(module.rank)));
    const auto again = load_adapter(backend_, model_, dir_.file("out"));
    ASSERT_EQ(again->modules().size(), adapter->modules().size());
    for (const LoraModule& was : adapter->modules()) {
      SCOPED_TRACE(was.path);
      const LoraModule* is = again->find_module(was.spec.layer, was.spec.target);
      ASSERT_NE(is, nullptr);
      EXPECT_EQ(is->spec.rank, was.spec.rank);
      EXPECT_DOUBLE_EQ(is->spec.scale, was.spec.scale);
    }
    save_adapter_for_peft(*again, model_.config, dir_.file("more"), "base");
    std::filesystem::remove_all(dir_.file("rslora"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ExpertsForPeft,
    ::testing::Values(Case{"qwen3_moe", "qwen3_moe", "qwen3_moe/a"},
                      Case{"qwen3_moe_full", "qwen3_moe", "peft_form/qwen3_moe_full/pairs"},
                      Case{"qwen3_moe_half", "qwen3_moe", "peft_form/qwen3_moe_half/pairs"},
                      Case{"deepseek_moe", "deepseek_moe", "deepseek_moe/a"},
                      Case{"qwen3_5_moe", "qwen3_5_moe", "qwen3_5_moe/a"},
                      Case{"deepseek_v4", "deepseek_v4", "deepseek_v4/a"}),
    [](const auto& info) { return std::string(info.param.name); });

class FilesForPeft : public ::testing::Test {
 protected:
  CpuBackend backend_{choose_cpu_path(), 1};
  LoadedModel model_ = load_model(backend_, kGolden + "qwen3_moe/model", {});
  TempDir dir_;

  std::unique_ptr<LoraAdapter> fresh(const std::vector<std::string>& targets) {
    auto adapter = std::make_unique<LoraAdapter>(
        backend_, *model_.weights,
        make_adapter_specs(model_.config, targets, 4, 6.0, ExpertRank::kFull));
    adapter->initialise(3);
    return adapter;
  }
};

// B of a fresh adapter is zero everywhere: the values alone do not say what it is made of.
TEST_F(FilesForPeft, AFreshAdapterComesBackWhateverItAdapts) {
  for (const std::vector<std::string>& targets : {std::vector<std::string>{"all-linear"},
                                                  {"gate_proj"},
                                                  {"up_proj", "down_proj"},
                                                  {"down_proj"},
                                                  {"q_proj", "lm_head"}}) {
    SCOPED_TRACE(targets[0]);
    const auto adapter = fresh(targets);
    save_adapter_for_peft(*adapter, model_.config, dir_.file(targets[0]), "base");
    expect_same_adapter(*load_adapter(backend_, model_, dir_.file(targets[0])), *adapter);
  }
}

// PEFT takes the names of dense projections for experts' by the family, also where there are none.
TEST_F(FilesForPeft, AModelWhoseLayersAreAllDenseNamesParametersToo) {
  const LoadedModel dense = load_model(backend_, kGolden + "deepseek_mla/model", {});
  LoraAdapter adapter(backend_, *dense.weights,
                      make_adapter_specs(dense.config, {"all-linear"}, 3, 6.0));
  adapter.initialise(3);
  save_adapter_for_peft(adapter, dense.config, dir_.file("out"), "base");
  const PeftConfig config = PeftAdapter(dir_.file("out")).config();
  EXPECT_THAT(config.target_parameters, ::testing::Contains("model.layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(config.target_modules,
              ::testing::Each(::testing::Not(::testing::ContainsRegex("gate|up_proj|down"))));
  expect_same_adapter(*load_adapter(backend_, dense, dir_.file("out")), adapter);
}

// The layer of multi-token prediction has experts of its own, below a path of its own.
TEST_F(FilesForPeft, ALayerOfMultiTokenPredictionComesBack) {
  const LoadedModel model =
      load_model(backend_, kGolden + "deepseek_v4_mtp/model", {.mtp = UseMtp::kAlways});
  LoraAdapter adapter(backend_, *model.weights,
                      make_adapter_specs(model.config, {"all-linear"}, 7, 6.0));
  adapter.initialise(3);
  save_adapter_for_peft(adapter, model.config, dir_.file("out"), "base");
  const SafetensorsFile file(dir_.file("out/adapter_model.safetensors"));
  EXPECT_NE(file.find("base_model.model.model.mtp.0.mlp.experts.base_layer.lora_A.weight"),
            nullptr);
  expect_same_adapter(*load_adapter(backend_, model, dir_.file("out")), adapter);
}

// One tensor of the file has one scaling, and the metadata says one thing for all layers.
TEST_F(FilesForPeft, WhatTheFormCannotHoldIsToldBeforeItIsWritten) {
  const LayerTable& layers = model_.weights->layers();
  const std::vector<LoraModuleSpec> all =
      make_adapter_specs(model_.config, {"all-linear"}, 4, 6.0, ExpertRank::kFull);
  EXPECT_EQ(find_peft_export_fault(layers, all), "");
  const auto name = [&](const LoraModuleSpec& spec) {
    const LoraTarget& target = layers.targets(spec.layer)[static_cast<size_t>(spec.target)];
    return target.num_experts > 0 ? std::string(target.name()) : std::string();
  };
  std::vector<LoraModuleSpec> other_rank = all;
  for (LoraModuleSpec& spec : other_rank) {
    if (spec.layer == 2 && name(spec) == "up_proj") spec.rank = 3;
  }
  EXPECT_THAT(find_peft_export_fault(layers, other_rank),
              HasSubstr("layer 2: gate_proj of the experts has rank 4 and alpha 6, up_proj 3 and "
                        "6; PEFT's form has both in one tensor"));
  std::vector<LoraModuleSpec> without_up = all;
  std::erase_if(without_up, [&](const LoraModuleSpec& spec) {
    return spec.layer == 2 && name(spec) == "up_proj";
  });
  EXPECT_THAT(find_peft_export_fault(layers, without_up),
              HasSubstr("experts of layer 0 it adapts gate_proj up_proj, of those of layer 2 "
                        "gate_proj;"));
  std::erase_if(without_up, [&](const LoraModuleSpec& spec) {
    return spec.layer == 2 && name(spec) == "gate_proj";
  });
  EXPECT_EQ(find_peft_export_fault(layers, without_up), "");
  LoraAdapter adapter(backend_, *model_.weights, without_up);
  adapter.initialise(3);
  save_adapter_for_peft(adapter, model_.config, dir_.file("out"), "base");
  expect_same_adapter(*load_adapter(backend_, model_, dir_.file("out")), adapter);
}

TEST_F(FilesForPeft, MetadataThatTheValuesBelieIsRefused) {
  save_adapter_for_peft(*fresh({"all-linear"}), model_.config, dir_.file("out"), "base");
  const std::string file = dir_.file("out/adapter_model.safetensors");
  const std::string whole = bytes_of(file);
  replace(file, "gate_proj up_proj", "gate_proj dn_proj");
  EXPECT_THAT(error_of([&] { load_adapter(backend_, model_, dir_.file("out")); }),
              AllOf(HasSubstr("got 'gate_proj dn_proj'"), HasSubstr("want 'gate_proj up_proj'")));
  std::ofstream(file, std::ios::binary) << whole;
  const PeftAdapter peft(dir_.file("out"));
  for (const PeftModule& module : peft.modules()) {
    if (!module.module_path.ends_with("gate_up_proj")) continue;
    std::string bytes = whole;  // gate's first output at up's last rank
    const auto at = static_cast<size_t>(module.b.begin + (module.b.shape[1] - 1) * 4);
    bytes.replace(at, 4, "\x00\x00\x80\x3f", 4);
    std::ofstream(file, std::ios::binary) << bytes;
    break;
  }
  EXPECT_THAT(error_of([&] { load_adapter(backend_, model_, dir_.file("out")); }),
              AllOf(HasSubstr("layers.0.mlp.experts.gate_up_proj"), HasSubstr("its values are not"),
                    HasSubstr("kept the metadata")));
}

}  // namespace
}  // namespace strata::model
