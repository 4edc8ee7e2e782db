// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/peft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "base/check.h"
#include "checkpoint/safetensors_writer.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::data_path;
using ::testing::ElementsAre;
using testing::entry;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_bytes;
using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_bytes;

std::vector<float> values_of(const PeftAdapter& adapter, const TensorInfo& info) {
  std::vector<float> values(static_cast<size_t>(info.shape.num_elements()));
  adapter.file().read_f32(info, 0, info.shape.num_elements(), values.data());
  return values;
}

// make_data.py fills a LoRA tensor of n elements with (i % 17) / 16 - n / 64.
std::vector<float> made_values(const TensorInfo& info) {
  std::vector<float> values;
  const int64_t count = info.shape.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(i % 17) / 16 - static_cast<float>(count) / 64);
  }
  return values;
}

// wanted.txt holds what PEFT itself made of the adapter: path, rank, alpha, scaling.
void expect_as_peft(const std::string& name) {
  const PeftAdapter adapter(data_path(name));
  std::ifstream wanted(data_path(name + "/wanted.txt"));
  size_t count = 0;
  std::string path;
  int64_t rank = 0;
  double alpha = 0;
  double scaling = 0;
  for (; wanted >> path >> rank >> alpha >> scaling; ++count) {
    ASSERT_LT(count, adapter.modules().size());
    const PeftModule& module = adapter.modules()[count];
    EXPECT_EQ(module.module_path, path);
    EXPECT_EQ(module.rank, rank) << path;
    EXPECT_EQ(module.alpha, alpha) << path;
    EXPECT_EQ(module.scaling, scaling) << path;
    EXPECT_EQ(module.embedding, path == "model.embed_tokens");
    EXPECT_EQ(values_of(adapter, module.a), made_values(module.a)) << path;
    EXPECT_EQ(values_of(adapter, module.b), made_values(module.b)) << path;
  }
  EXPECT_EQ(count, adapter.modules().size());
  EXPECT_GT(count, 0u);
}

TEST(PeftAdapter, ReadsWhatPeftWrote) { expect_as_peft("peft_plain"); }

TEST(PeftAdapter, ReadsEmbeddingsPatternsAndRslora) {
  expect_as_peft("peft_rich");
  const PeftAdapter adapter(data_path("peft_rich"));
  EXPECT_TRUE(adapter.config().use_rslora);
  ASSERT_EQ(adapter.base_copies().size(), 2u);
  EXPECT_EQ(adapter.base_copies()[0].base_name, "lm_head.weight");
  EXPECT_EQ(adapter.base_copies()[1].base_name, "model.embed_tokens.weight");
  EXPECT_EQ(adapter.base_copies()[1].tensor.name,
            "base_model.model.model.embed_tokens.base_layer.weight");
  EXPECT_EQ(adapter.base_copies()[1].tensor.shape, (Shape{13, 8}));
}

// A directory of one linear module, r = 2, that the tests below break in one place each.
class PeftDir : public ::testing::Test {
 protected:
  static constexpr const char* kA = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight";
  static constexpr const char* kB = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight";

  PeftDir() {
    add(kA, {2, 3});
    add(kB, {4, 2});
  }
  void add(const std::string& name, const Shape& shape) {
    tensors_.push_back({name, DType::kF32, shape});
  }
  void set_config(const std::string& more) {
    write_bytes(dir_.file("adapter_config.json"),
                R"({"peft_type": "LORA", "r": 2, "lora_alpha": 8)" + more + "}");
  }
  void write_tensors() {
    SafetensorsWriter writer(dir_.file("adapter_model.safetensors"), tensors_);
    for (const TensorDecl& tensor : writer.tensors()) {
      writer.append_f32(tensor.name,
                        std::vector<float>(static_cast<size_t>(tensor.shape.num_elements())));
    }
    writer.commit();
  }
  std::string fault(const std::string& more = "") {
    write_tensors();
    return config_fault(more);
  }
  std::string config_fault(const std::string& more) {
    set_config(more);
    return error_of([&] { PeftAdapter adapter(dir_.path()); });
  }
  std::vector<TensorDecl> tensors_;
  TempDir dir_;
};

TEST_F(PeftDir, IsFineUnbroken) {
  EXPECT_EQ(fault(), "");
  const PeftAdapter adapter(dir_.path());
  ASSERT_EQ(adapter.modules().size(), 1u);
  EXPECT_EQ(adapter.modules()[0].module_path, "model.layers.0.mlp.up_proj");
  EXPECT_EQ(adapter.modules()[0].a.name, kA);
  EXPECT_EQ(adapter.modules()[0].scaling, 4.0);
}

TEST_F(PeftDir, EveryTensorIsAccountedForAndAllFaultsComeTogether) {
  tensors_.pop_back();
  add("base_model.model.model.layers.1.mlp.up_proj.lora_B.weight", {4, 2});
  add("base_model.model.model.layers.2.mlp.up_proj.lora_A.weight", {3, 3});
  add("base_model.model.model.layers.2.mlp.up_proj.lora_B.weight", {4, 2});
  add("base_model.model.model.layers.3.mlp.up_proj.lora_A.weight", {2, 3, 1});
  add("base_model.model.model.layers.3.mlp.up_proj.lora_B.weight", {4, 2});
  add("base_model.model.model.layers.4.mlp.up_proj.lora_magnitude_vector", {4});
  add("base_model.model.model.layers.5.mlp.up_proj.lora_B.bias", {4});
  add("base_model.model.lm_head.weight", {4, 2});
  add("model.layers.6.mlp.up_proj.lora_A.weight", {2, 3});
  add("base_model.model.model.layers.7.mlp.up_proj.lora_A.default.weight", {2, 3});
  add("base_model.model.lora_A.weight", {2, 3});
  add("base_model.model.model.layers.8.mlp.experts.base_layer.lora_A.weight", {2, 3});
  add("base_model.model.model.layers.8.mlp.experts.base_layer.lora_B.weight", {4, 2});
  EXPECT_THAT(
      fault(),
      AllOf(HasSubstr("11 faults"), HasSubstr("layers.0.mlp.up_proj.lora_A.weight': its B is not"),
            HasSubstr("layers.1.mlp.up_proj.lora_B.weight': its A is not"),
            HasSubstr("layers.2.mlp.up_proj': A [3, 3] and B [4, 2], the config"),
            HasSubstr("layers.3.mlp.up_proj.lora_A.weight': shape [2, 3, 1], wanted two axes"),
            HasSubstr("lora_magnitude_vector': DoRA"), HasSubstr("lora_B.bias': biases"),
            HasSubstr("lm_head.weight': not a LoRA tensor"), HasSubstr("does not start with"),
            HasSubstr("lora_A.default.weight': not a form of LoRA")));
  EXPECT_THAT(fault(), AllOf(HasSubstr("base_model.model.lora_A.weight"),
                             HasSubstr("the outer, 'model.layers.8.mlp.experts', is missing")));
}

TEST_F(PeftDir, RankMustAgreeBetweenConfigAAndB) {
  EXPECT_THAT(fault(R"(, "rank_pattern": {"up_proj": 3})"), HasSubstr("wants rank 3"));
  tensors_[1].shape = {4, 3};
  EXPECT_THAT(fault(), HasSubstr("A [2, 3] and B [4, 3]"));
  tensors_[0].shape = {3, 3};
  EXPECT_THAT(fault(), HasSubstr("wants rank 2"));
  EXPECT_EQ(fault(R"(, "rank_pattern": {"up_proj": 3})"), "");
}

TEST_F(PeftDir, ModuleIsLinearOrEmbeddingNotBoth) {
  add("base_model.model.model.layers.0.mlp.up_proj.lora_embedding_A", {2, 3});
  EXPECT_THAT(fault(), HasSubstr("has both"));
}

TEST_F(PeftDir, ModuleIsNotThereUnderTwoNames) {
  for (const std::string path : {"experts", "experts.gate_up_proj"})
    for (const char* part : {".lora_A.weight", ".lora_B.weight"})
      add("base_model.model.model.layers.0.mlp." + path + part, {2, 2});
  EXPECT_THAT(fault(R"(, "target_parameters": ["experts.gate_up_proj"])"),
              HasSubstr("layers.0.mlp.experts.gate_up_proj': is there twice"));
}

TEST_F(PeftDir, NothingToLoadIsAFault) {
  tensors_.clear();
  EXPECT_THAT(fault(), HasSubstr("no LoRA tensor"));
}

TEST_F(PeftDir, TypeOfATensorIsChecked) {
  set_config("");
  write_bytes(dir_.file("adapter_model.safetensors"),
              safetensors_bytes("{" + entry(kA, "I16", "[2,3]", 0, 12) + "," +
                                    entry(kB, "F16", "[4,2]", 12, 28) + "}",
                                std::string(28, '\0')));
  EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }),
              HasSubstr("I16 [2, 3], wanted F32"));
}

TEST_F(PeftDir, MissingFilesAreNamed) {
  EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }),
              HasSubstr("adapter_config.json: open"));
  set_config("");
  EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }),
              HasSubstr("adapter_model.safetensors: open"));
  write_bytes(dir_.file("adapter_model.bin"), "pickle");
  EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }), HasSubstr("(a pickle)"));
}

TEST_F(PeftDir, KeysThatChangeNothingAreAccepted) {
  write_tensors();
  for (const char* key :
       {"use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters",
        "layer_replication", "megatron_config", "alora_invocation_tokens", "use_qalora",
        "arrow_config", "ensure_weight_tying", "fan_in_fan_out", "a_key_of_next_year"}) {
    for (const char* value : {"null", "false", "[]", "{}"}) {
      EXPECT_EQ(config_fault(std::string(", \"") + key + "\": " + value), "") << key << value;
    }
  }
  EXPECT_EQ(
      fault(
          R"(, "bias": "none", "init_lora_weights": "gaussian", "lora_dropout": 0.1, "revision": "x",
                  "layers_to_transform": [0], "target_modules": "all-linear", "rank_pattern": null)"),
      "");
}

TEST_F(PeftDir, KeysThatChangeTheModelAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"use_dora", "true"},
      {"lora_bias", "true"},
      {"bias", "\"all\""},
      {"bias", "\"lora_only\""},
      {"modules_to_save", "[\"lm_head\"]"},
      {"trainable_token_indices", "[1]"},
      {"target_parameters", "true"},
      {"layer_replication", "[[0,1]]"},
      {"megatron_config", "{\"a\":1}"},
      {"alora_invocation_tokens", "[1]"},
      {"use_qalora", "true"},
      {"use_bdlora", "{\"a\":1}"},
      {"fan_in_fan_out", "true"},
      {"ensure_weight_tying", "true"},
      {"init_lora_weights", "\"pissa\""},
      {"init_lora_weights", "\"olora\""},
      {"init_lora_weights", "\"loftq\""},
      {"a_key_of_next_year", "true"},
      {"r", "0"},
      {"r", "-1"},
      {"rank_pattern", "{\"x\":0}"},
      {"peft_type", "1"},
  };
  write_tensors();
  for (const auto& [key, value] : cases) {
    // The key may be there already: the config is written anew with it alone.
    std::string config = std::string("{\"") + key + "\":" + value;
    if (std::string(key) != "peft_type") config += ",\"peft_type\":\"LORA\"";
    if (std::string(key) != "r") config += ",\"r\":2";
    write_bytes(dir_.file("adapter_config.json"), config + "}");
    EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }), HasSubstr(key))
        << key << " " << value;
    EXPECT_NE(error_of([&] { PeftAdapter adapter(dir_.path()); }), "") << key << " " << value;
  }
  EXPECT_THAT(fault(R"(, "use_dora": true, "lora_bias": true)"),
              AllOf(HasSubstr("2 faults"), HasSubstr("use_dora: got true"),
                    HasSubstr("lora_bias: got true")));
}

TEST_F(PeftDir, OtherKindsOfAdapterAreRefused) {
  write_tensors();
  write_bytes(dir_.file("adapter_config.json"), R"({"peft_type": "IA3"})");
  EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }),
              HasSubstr("got \"IA3\", wanted \"LORA\""));
  write_bytes(dir_.file("adapter_config.json"), R"({"r": 2})");
  EXPECT_THAT(error_of([&] { PeftAdapter adapter(dir_.path()); }),
              HasSubstr("peft_type is missing"));
}

std::vector<PeftWriteModule> modules_for_writing(const PeftAdapter& adapter,
                                                 std::vector<std::vector<float>>& store) {
  std::vector<PeftWriteModule> modules;
  store.reserve(2 * adapter.modules().size());
  for (const PeftModule& module : adapter.modules()) {
    store.push_back(values_of(adapter, module.a));
    const TensorView a(store.back().data(), DType::kF32, module.a.shape);
    store.push_back(values_of(adapter, module.b));
    const TensorView b(store.back().data(), DType::kF32, module.b.shape);
    modules.push_back({module.module_path, module.embedding, module.alpha, a, b});
  }
  return modules;
}

TEST(WritePeft, RoundTripsWhatPeftWrote) {
  for (const char* name : {"peft_plain", "peft_rich"}) {
    const PeftAdapter before(data_path(name));
    std::vector<std::vector<float>> store;
    const auto modules = modules_for_writing(before, store);
    const TempDir out;
    write_peft(out.file("adapter"),
               {.use_rslora = before.config().use_rslora, .base_model_name_or_path = "base"},
               modules);
    const PeftAdapter after(out.file("adapter"));
    EXPECT_EQ(after.config().base_model_name_or_path, "base");
    EXPECT_TRUE(after.base_copies().empty());
    ASSERT_EQ(after.modules().size(), before.modules().size());
    for (size_t i = 0; i < modules.size(); ++i) {
      EXPECT_EQ(after.modules()[i].a.name, before.modules()[i].a.name);
      EXPECT_EQ(after.modules()[i].b.name, before.modules()[i].b.name);
      EXPECT_EQ(after.modules()[i].scaling, before.modules()[i].scaling);
      EXPECT_EQ(values_of(after, after.modules()[i].a), values_of(before, before.modules()[i].a));
      EXPECT_EQ(values_of(after, after.modules()[i].b), values_of(before, before.modules()[i].b));
    }
  }
}

TEST(WritePeft, SameInputSameBytesAndOtherFilesStay) {
  const PeftAdapter before(data_path("peft_rich"));
  std::vector<std::vector<float>> store;
  const auto modules = modules_for_writing(before, store);
  const TempDir out;
  write_bytes(out.file("metrics.jsonl"), "kept");
  const PeftWriteOptions options{
      .target_modules = {"q_proj", "down_proj", "lm_head", "embed_tokens"}};
  write_peft(out.path(), options, modules);
  const std::string tensors = read_bytes(out.file("adapter_model.safetensors"));
  const std::string config = read_bytes(out.file("adapter_config.json"));
  EXPECT_THAT(PeftAdapter(out.path()).config().target_modules,
              ElementsAre("q_proj", "down_proj", "lm_head", "embed_tokens"));
  write_peft(out.path(), options, modules);
  EXPECT_EQ(read_bytes(out.file("adapter_model.safetensors")), tensors);
  EXPECT_EQ(read_bytes(out.file("adapter_config.json")), config);
  EXPECT_EQ(read_bytes(out.file("metrics.jsonl")), "kept");
  write_peft(out.path(), {.use_rslora = true}, modules);
  EXPECT_TRUE(PeftAdapter(out.path()).config().use_rslora);
  EXPECT_THAT(out.names(),
              ElementsAre("adapter_config.json", "adapter_model.safetensors", "metrics.jsonl"));
}

// When the config cannot be replaced, tensors of another config must not be left beside the old
// one.
TEST(WritePeft, FailureBetweenTheFilesLeavesNoMixture) {
  const PeftAdapter before(data_path("peft_rich"));
  std::vector<std::vector<float>> store;
  const auto modules = modules_for_writing(before, store);
  const TempDir out;
  write_bytes(out.file("adapter_model.safetensors"), "tensors of another adapter");
  make_folders(out.file("adapter_config.json/in the way"));
  EXPECT_THAT(error_of([&] { write_peft(out.path(), {}, modules); }),
              HasSubstr("adapter_config.json: rename"));
  EXPECT_THAT(out.names(), ElementsAre("adapter_config.json"));
}

// What PEFT adapts as a parameter stands in target_parameters and in patterns under that name, and
// its tensors under the module's; fellows in other layers share a key. Values may be made late.
TEST(WritePeft, ParametersHavePatternsOfTheirOwn) {
  std::vector<float> values(256, 1.0f);
  const auto fill = [](bool is_b, float* out) { std::fill_n(out, 3 * 4 * 4, is_b ? 2.0f : 3.0f); };
  const auto module = [&](const std::string& path, int64_t rank, double alpha,
                          const std::string& parameter) {
    return PeftWriteModule{.module_path = path,
                           .alpha = alpha,
                           .a = {values.data(), DType::kF32, {rank, 4}},
                           .b = {values.data(), DType::kF32, {4, rank}},
                           .rank = rank,
                           .parameter = parameter};
  };
  std::vector<PeftWriteModule> modules = {
      module("model.layers.0.self_attn.q_proj", 2, 8, ""),
      module("model.layers.1.self_attn.q_proj", 2, 8, ""),
      module("model.layers.0.mlp.up_proj", 5, 9, "model.layers.0.mlp.up_proj.weight")};
  for (const char* layer : {"model.layers.1.", "model.layers.2."}) {
    const std::string path = layer + std::string("mlp.experts.gate_up_proj");
    PeftWriteModule& experts = modules.emplace_back(module(path, 4, 16, path));
    experts.a = {nullptr, DType::kF32, {12, 4}};
    experts.b = {nullptr, DType::kF32, {4, 12}};
    experts.key = path.substr(0, path.rfind('.'));
    experts.fill = fill;
  }
  const TempDir out;
  write_peft(out.path(), {.metadata = {{"made_of", "halves"}}}, modules);
  const PeftAdapter adapter(out.path());
  const PeftConfig& config = adapter.config();
  EXPECT_THAT(config.target_modules,
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"));
  EXPECT_THAT(config.target_parameters, ElementsAre("model.layers.0.mlp.up_proj.weight",
                                                    "model.layers.1.mlp.experts.gate_up_proj",
                                                    "model.layers.2.mlp.experts.gate_up_proj"));
  EXPECT_EQ(config.rank_pattern, (std::vector<std::pair<std::string, int64_t>>{
                                     {R"(.*\.mlp\.experts\.gate_up_proj)", 4},
                                     {"model.layers.0.mlp.up_proj.weight", 5}}));
  EXPECT_EQ(adapter.file().metadata().at("made_of"), "halves");
  ASSERT_EQ(adapter.modules().size(), 5U);
  for (const PeftModule& read : adapter.modules()) {
    const bool experts = read.form == PeftForm::kFused;
    const bool up = read.module_path == "model.layers.0.mlp.up_proj";
    EXPECT_EQ(read.rank, experts ? 4 : up ? 5 : 2) << read.module_path;
    EXPECT_EQ(read.alpha, experts ? 16 : up ? 9 : 8) << read.module_path;
    EXPECT_EQ(values_of(adapter, read.b)[0], experts ? 2.0f : 1.0f);
  }
}

// A single wrapper of a layer's experts is of the tensor that target_parameters names in that
// layer.
TEST(Peft, TheOnlyWrapperOfExpertsIsFoundByItsLayer) {
  std::vector<float> values(256, 1.0f);
  std::vector<PeftWriteModule> modules;
  for (const char* name : {"0.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"}) {
    const std::string path = std::string("model.layers.") + name;
    modules.push_back({.module_path = path,
                       .alpha = 8,
                       .a = {values.data(), DType::kF32, {12, 4}},
                       .b = {values.data(), DType::kF32, {4, 12}},
                       .rank = 4,
                       .key = path.substr(0, path.rfind('.')),
                       .parameter = path});
  }
  const TempDir out;
  write_peft(out.path(), {}, modules);
  const PeftAdapter adapter(out.path());
  ASSERT_EQ(adapter.modules().size(), 2U);
  EXPECT_EQ(adapter.modules()[0].module_path, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(adapter.modules()[1].module_path, "model.layers.1.mlp.experts.down_proj");
}

// A rank_pattern key is an expression over suffixes of paths; one that also decided for another
// module would give that module the wrong rank.
TEST(WritePeft, RefusesPathsThatPatternsCannotTellApart) {
  std::vector<float> values(64);
  const auto module = [&](const char* path, int64_t rank) {
    return PeftWriteModule{path,
                           false,
                           8,
                           {values.data(), DType::kF32, {rank, 4}},
                           {values.data(), DType::kF32, {4, rank}}};
  };
  const PeftWriteModule modules[] = {module("head", 2), module("model.head", 4),
                                     module("model.other", 4)};
  const TempDir out;
  EXPECT_THAT(error_of([&] { write_peft(out.path(), {}, modules); }),
              HasSubstr("cannot be told apart"));
}

}  // namespace
}  // namespace strata
