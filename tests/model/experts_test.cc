// SPDX-License-Identifier: Apache-2.0
// Experts in files: every parameter and buffer of the golden models arrives and is saved back under
// its own name, whatever the form; the three forms of experts' adapters round trip; what is missing
// is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/checkpoint_dir.h"
#include "model/adapter/io.h"
#include "model/weights/load.h"
#include "model/weights/save.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using strata::testing::error_of;
using strata::testing::TempDir;
using ::testing::HasSubstr;

const std::string kGolden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/";

std::vector<float> tensor_of(const CheckpointDir& dir, const std::string& name) {
  const CheckpointTensor* tensor = dir.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(tensor->info.shape.num_elements()));
  dir.read_f32(*tensor, 0, std::ssize(values), values.data());
  return values;
}

class ExpertModel : public ::testing::TestWithParam<const char*> {
 protected:
  CpuBackend backend_{choose_cpu_path(), 1};
  std::string dir_ = kGolden + GetParam() + "/model";
};

// No parameter keeps what it was allocated with; buffers keep their digits in bf16 mode too.
TEST_P(ExpertModel, EveryParameterAndBufferIsTheFilesInBothModes) {
  const CheckpointDir file(dir_);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const LoadedModel model = load_model(backend_, dir_, {.compute_dtype = dtype});
    size_t num_tensors = 0;
    for (const StoredTensor& stored : model.weights->stored_tensors()) {
      const std::vector<float> want = tensor_of(file, std::string(stored.name));
      size_t at = 0;
      ++num_tensors;
      for (const StoredRows& rows : stored.rows) {
        const Parameter& parameter = model.weights->table()[rows.parameter];
        Tensor got(cpu_allocator(), DType::kF32, {rows.count, parameter.num_cols()});
        model.weights->read_rows(backend_, rows.parameter, rows.first, got.view());
        for (int64_t i = 0; i < got.view().shape.num_elements(); ++i, ++at) {
          ASSERT_LT(at, want.size()) << stored.name;
          const bool rounded =
              dtype == DType::kBF16 && !parameter.buffer && parameter.floor != DType::kF32;
          ASSERT_EQ(got.view().f32()[i], rounded ? round_to_bf16(want[at]) : want[at])
              << stored.name << " element " << at << " of expert " << parameter.expert;
        }
      }
      EXPECT_EQ(at, want.size()) << stored.name;
    }
    EXPECT_EQ(num_tensors + model.ignored.size(), file.tensors().size());
  }
}

TEST_P(ExpertModel, IsSavedBackUnderItsOwnNames) {
  TempDir out;
  save_model(backend_, load_model(backend_, dir_, {}), out.file("saved"), nullptr, DType::kF32);
  const CheckpointDir before(dir_), after(out.file("saved"));
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const CheckpointTensor& tensor : before.tensors()) {
    EXPECT_EQ(tensor_of(after, tensor.info.name), tensor_of(before, tensor.info.name));
    EXPECT_EQ(after.find(tensor.info.name)->info.dtype, tensor.info.dtype);
    EXPECT_EQ(after.find(tensor.info.name)->info.shape, tensor.info.shape);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertModel,
                         ::testing::Values("qwen3_moe", "qwen3_moe_fused", "qwen3_moe_bf16",
                                           "deepseek_moe", "deepseek_moe_all", "glm4_moe_lite",
                                           "deepseek_mla", "qwen3_next", "qwen3_next_bf16"));

// Replaces the first occurrence of `from` by `to`, of the same length.
void patch(const std::string& path, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = text.str();
  const size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  bytes.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary) << bytes;
}

class ExpertFiles : public ::testing::Test {
 protected:
  CpuBackend backend_{choose_cpu_path(), 1};
  std::string case_ = kGolden + "qwen3_moe/";
  LoadedModel model_ = load_model(backend_, case_ + "model", {});
  TempDir dir_;

  std::string copy_of(const std::string& name) {
    std::filesystem::copy(case_ + name, dir_.file(name), std::filesystem::copy_options::recursive);
    return dir_.file(name);
  }
};

TEST_F(ExpertFiles, AModelThatLacksAnExpertIsRefusedByName) {
  const std::string dir = copy_of("model");
  patch(dir + "/model.safetensors", "model.layers.2.mlp.experts.3.up_proj.weight",
        "model.layers.2.mlp.experts.3.up_prox.weight");
  EXPECT_THAT(
      error_of([&] { load_model(backend_, dir, {}); }),
      ::testing::AllOf(HasSubstr("'model.layers.2.mlp.experts.3.up_proj.weight' [20, 24] is"),
                       HasSubstr("up_prox")));
}

TEST_F(ExpertFiles, AnAdapterThatLacksAnExpertIsRefusedByName) {
  const std::string dir = copy_of("a");
  for (const char* part : {"lora_A", "lora_B"}) {
    const std::string tail = std::string(".up_proj.") + part + ".weight";
    patch(dir + "/adapter_model.safetensors", "layers.2.mlp.experts.3" + tail,
          "layers.2.mlp.experts.9" + tail);
  }
  patch(dir + "/adapter_config.json", R"(2\\.mlp\\.experts\\.3\\.up_proj)",
        R"(2\\.mlp\\.experts\\.9\\.up_proj)");
  EXPECT_THAT(
      error_of([&] { load_adapter(backend_, model_, dir); }),
      ::testing::AllOf(HasSubstr("model.layers.2.mlp.experts.up_proj': expert 3 is missing"),
                       HasSubstr("experts.9.up_proj")));
}

// The fault of an adapter with these modules of up_proj, which have those sizes.
std::string fault_of_up_projs(Backend& backend, const LoadedModel& model, const std::string& dir,
                              std::initializer_list<const char*> paths, int64_t in, int64_t out) {
  std::vector<float> values(64 * 64);
  std::vector<PeftWriteModule> modules;
  for (const char* path : paths) {
    modules.push_back({.module_path = path,
                       .alpha = 4.0,
                       .a = TensorView(values.data(), DType::kF32, {2, in}),
                       .b = TensorView(values.data(), DType::kF32, {out, 2}),
                       .rank = 2});
  }
  write_peft(dir, {}, modules);
  return error_of([&] { load_adapter(backend, model, dir); });
}

// What torch would write otherwise names no module, and so no expert a second time.
TEST_F(ExpertFiles, AnAdapterWithAnExpertByAnotherNumberIsRefused) {
  for (const char* other :
       {"model.layers.2.mlp.experts.01.up_proj", "model.layers.2.mlp.experts.-1.up_proj",
        "model.layers.02.mlp.experts.1.up_proj", "model.layers.-2.mlp.experts.1.up_proj"}) {
    EXPECT_THAT(fault_of_up_projs(backend_, model_, dir_.file(other),
                                  {"model.layers.2.mlp.experts.1.up_proj", other}, 24, 20),
                ::testing::AllOf(HasSubstr(other), HasSubstr("has no such linear module")));
  }
  const char* zero = "model.layers.2.mlp.experts.-0.up_proj";
  EXPECT_THAT(fault_of_up_projs(backend_, model_, dir_.file("zero"),
                                {"model.layers.2.mlp.experts.0.up_proj", zero}, 24, 20),
              ::testing::AllOf(HasSubstr(zero), HasSubstr("has no such linear module")));
}

// A text part has two names, and an expert one place all the same.
TEST_F(ExpertFiles, AnAdapterWithAnExpertByTwoNamesIsRefused) {
  const LoadedModel model = load_model(backend_, kGolden + "qwen3_5_moe_hub/model", {});
  const char* shorter = "model.layers.0.mlp.experts.1.up_proj";
  const char* longer = "model.language_model.layers.0.mlp.experts.1.up_proj";
  EXPECT_THAT(fault_of_up_projs(backend_, model, dir_.file("a"), {shorter, longer}, 20, 12),
              ::testing::AllOf(HasSubstr(shorter), HasSubstr(longer), HasSubstr("adapt the same")));
}

// Per expert, PEFT's whole tensors, Tinker's stacked ones: what is saved is what was loaded, tensor
// by tensor, and loads again. The rank axis is the one that adapters are sliced by.
TEST_F(ExpertFiles, AdaptersOfEveryFormRoundTrip) {
  for (const char* name : {"a", "b", "c"}) {
    SCOPED_TRACE(name);
    const auto adapter = load_adapter(backend_, model_, case_ + name);
    const std::string saved = dir_.file(name);
    save_adapter(*adapter, saved, "");
    const PeftAdapter before(case_ + name), after(saved);
    ASSERT_EQ(after.modules().size(), before.modules().size());
    for (size_t i = 0; i < before.modules().size(); ++i) {
      const PeftModule &was = before.modules()[i], &is = after.modules()[i];
      EXPECT_EQ(is.module_path, was.module_path);
      EXPECT_EQ(is.form, was.form);
      EXPECT_EQ(is.rank, was.rank);
      EXPECT_EQ(is.scaling, was.scaling);
      for (const auto& [a, b] : {std::pair(&was.a, &is.a), std::pair(&was.b, &is.b)}) {
        ASSERT_EQ(b->shape, a->shape);
        std::vector<float> x(static_cast<size_t>(a->shape.num_elements())), y = x;
        before.file().read_f32(*a, 0, std::ssize(x), x.data());
        after.file().read_f32(*b, 0, std::ssize(y), y.data());
        EXPECT_EQ(y, x) << a->name;
      }
    }
    const auto again = load_adapter(backend_, model_, saved);
    ASSERT_EQ(again->num_parameters(), adapter->num_parameters());
    EXPECT_EQ(std::memcmp(again->parameters().data, adapter->parameters().data,
                          static_cast<size_t>(adapter->parameters().num_bytes())),
              0);
    for (const LoraModule& module : adapter->modules()) {
      if (module.num_experts == 0) continue;
      const int64_t rank = module.spec.rank;
      EXPECT_EQ(module.a.shape, (Shape{6, rank, module.a.shape[2]})) << module.path;
      EXPECT_EQ(module.b.shape, (Shape{6, module.b.shape[1], rank})) << module.path;
    }
  }
}

// The weights of an adapter's file fit an adapter of the same modules whatever the form.
TEST_F(ExpertFiles, WeightsLoadIntoAnAdapterOfTheSameModulesOnly) {
  const auto from = load_adapter(backend_, model_, case_ + "a");
  std::vector<LoraModuleSpec> specs;
  for (const LoraModule& module : from->modules()) specs.push_back(module.spec);
  std::swap(specs.front(), specs.back());
  LoraAdapter to(backend_, *model_.weights, specs);
  load_adapter_weights(model_, case_ + "a", to);
  for (const LoraModule& module : to.modules()) {
    const LoraModule* same = from->find_module(module.spec.layer, module.spec.target);
    EXPECT_EQ(std::memcmp(module.b.data, same->b.data, static_cast<size_t>(same->b.num_bytes())),
              0);
  }
  specs.back().rank += 1;
  LoraAdapter other(backend_, *model_.weights, specs);
  EXPECT_THAT(error_of([&] { load_adapter_weights(model_, case_ + "a", other); }),
              HasSubstr("do not fit"));
}

TEST_F(ExpertFiles, RoutedExpertsHaveADividedRankUnlessToldOtherwise) {
  ModelConfig config = load_config(kGolden + "deepseek_moe/model", false).config;
  const LayerTable layers(config);
  for (const auto& [rank, divided] : {std::pair<int64_t, int64_t>{3, 1}, {8, 1}, {33, 4}}) {
    for (const ExpertRank setting : {ExpertRank::kDivided, ExpertRank::kFull}) {
      for (const LoraModuleSpec& spec :
           make_adapter_specs(config, {"all-linear"}, rank, 32.0, setting)) {
        const bool expert =
            layers.targets(spec.layer)[static_cast<size_t>(spec.target)].num_experts > 0;
        const int64_t want = expert && setting == ExpertRank::kDivided ? divided : rank;
        EXPECT_EQ(spec.rank, want) << module_path(layers, spec);
        EXPECT_EQ(spec.scale, 32.0 / static_cast<double>(want)) << module_path(layers, spec);
      }
    }
  }
  EXPECT_THAT(error_of([] { parse_expert_rank("half"); }), HasSubstr("divided or full"));
}

TEST_F(ExpertFiles, AnAdaptersSizeIsKnownBefore) {
  const auto specs = make_adapter_specs(model_.config, {"all-linear", "lm_head"}, 12, 16.0);
  LoraAdapter adapter(backend_, *model_.weights, specs);
  const auto bytes = [&](bool trains) {
    return adapter_bytes(*model_.weights, specs, backend_.panel_width(), trains);
  };
  EXPECT_EQ(adapter.num_bytes(), bytes(false));
  adapter.enable_training();
  EXPECT_EQ(adapter.num_bytes(), bytes(true));
}

TEST_F(ExpertFiles, AdaptersThatTakeTurnsHaveTheirGradientsOnce) {
  const auto specs = make_adapter_specs(model_.config, {"all-linear", "lm_head"}, 12, 16.0);
  LoraAdapter first(backend_, *model_.weights, specs), second(backend_, *model_.weights, specs);
  first.enable_training();
  second.enable_training(&first);
  const int64_t alone = adapter_bytes(*model_.weights, specs, backend_.panel_width(), true);
  EXPECT_EQ(first.num_bytes(), alone);
  EXPECT_EQ(second.num_bytes(), alone - gradient_bytes(*model_.weights, specs));
  EXPECT_EQ(second.gradients().data, first.gradients().data);
  EXPECT_NE(second.first_moments().data, first.first_moments().data);
}

}  // namespace
}  // namespace strata::model
