// SPDX-License-Identifier: Apache-2.0
// Loading through the program: every parameter of every golden model arrives bit for bit, and a
// tensor that is missing, left over or of another shape is named, with all others, before anything
// is computed.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/golden/altered_golden.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

std::vector<GoldenRow> one_row_of_each_model() {
  std::vector<GoldenRow> rows;
  std::set<std::string> seen;
  for (const GoldenRow& row : read_goldens()) {
    if (seen.insert(row.model).second) rows.push_back(row);
  }
  return rows;
}

std::string write_request(const std::string& text) {
  const std::string path = temporary_path("loader.json");
  std::ofstream(path) << text;
  return path;
}

const char* const kForward =
    R"({"sequences": [{"tokens": [1, 2], "targets": [2, 3]}], "want": ["logits"]})";
const char* const kForwardOfMtp =
    R"({"sequences": [{"tokens": [1, 2], "targets": [2, 3]}], "want": ["logits"], "mtp": 1})";
// A step that moves nothing hands the parameters back as they were loaded.
const char* const kParameters =
    R"({"sequences": [{"tokens": [1, 2], "targets": [2, 3]}], "want": [],
        "train": {"what": "params", "steps": 1, "lr": 0}})";

// Keys and values of the last two layers, which read those of others.
bool is_of_keys_that_nothing_reads(const std::string& model, const std::string& name) {
  if (model.find("gemma4_shared_bf16") == std::string::npos) return false;
  const bool is_shared = name.find("layers.3.self_attn.") != std::string::npos ||
                         name.find("layers.4.self_attn.") != std::string::npos;
  return is_shared &&
         (name.find(".k_") != std::string::npos || name.find(".v_") != std::string::npos);
}

class LoadedModel : public testing::TestWithParam<GoldenRow> {};

TEST_P(LoadedModel, EveryParameterIsTheFilesBitForBit) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  const ProbeResult result =
      run_probe({.model = GetParam().model, .request = write_request(kParameters)});
  ASSERT_EQ(result.exit_code, 0) << result.message;
  size_t num_tensors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GetParam().model)) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const auto& [name, tensor] : by_expert(read_tensors(entry.path()))) {
      if (name.ends_with("e_score_correction_bias")) continue;        // not trained, see below
      if (name.ends_with(".ffn.gate.bias")) continue;                 // the same in DeepSeek-V4
      if (name.ends_with(".layer_scalar")) continue;                  // nor is it in Gemma 4
      if (name.find("vision_tower.") != std::string::npos) continue;  // belong to no text model
      if (name.find("multi_modal_projector.") != std::string::npos) continue;
      if (name.starts_with("model.visual.") || name.starts_with("mtp.")) continue;
      if (is_of_keys_that_nothing_reads(GetParam().model, name)) continue;
      ++num_tensors;
      const auto found = result.tensors.find("param_final." + name);
      ASSERT_NE(found, result.tensors.end()) << name;
      EXPECT_EQ(found->second.dims, tensor.dims) << name;
      EXPECT_EQ(found->second.values, tensor.values) << name;
    }
  }
  EXPECT_EQ(result.tensors.size(), num_tensors + 2);  // and train.loss, train.grad_norm
}

INSTANTIATE_TEST_SUITE_P(All, LoadedModel, testing::ValuesIn(one_row_of_each_model()),
                         [](const auto& info) {
                           const std::filesystem::path folder(info.param.model);
                           return folder.parent_path().filename().string();
                         });

class DamagedFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
    folder_ = temporary_path("damaged");
    copy("llama2");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A golden's files in place of those that are there.
  void copy(const std::string& golden) {
    std::filesystem::remove_all(folder_);
    const auto deep = std::filesystem::copy_options::recursive;
    std::filesystem::copy(STRATA_SOURCE_DIR "/tests/golden/" + golden, folder_, deep);
  }

  // Replaces the first occurrence of `from` by `to`, of the same length, in a file.
  void replace(const std::string& file, const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    const std::string path = folder_ + "/" + file;
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    std::string bytes = text.str();
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary) << bytes;
  }

  // Runs and expects a refusal that names every one of the words.
  void expect_refused(const std::vector<std::string>& adapters,
                      const std::vector<std::string>& words,
                      const std::string& request = kForward) {
    const ProbeResult result = run_probe(
        {.model = folder_ + "/model", .adapters = adapters, .request = write_request(request)});
    EXPECT_EQ(result.exit_code, 2) << result.message;
    for (const std::string& word : words) {
      EXPECT_NE(result.message.find(word), std::string::npos)
          << word << " is not in: " << result.message;
    }
  }

  std::string folder_;
};

TEST_F(DamagedFiles, AreFineUnbroken) {
  const ProbeResult result = run_probe({.model = folder_ + "/model",
                                        .adapters = {folder_ + "/a", folder_ + "/b"},
                                        .request = write_request(kForward)});
  EXPECT_EQ(result.exit_code, 0) << result.message;
}

TEST_F(DamagedFiles, MissingAndLeftOverTensorsAreAllNamed) {
  replace("model/model.safetensors", "model.layers.1.mlp.up_proj.weight",
          "model.layers.1.mlp.up_prox.weight");
  replace("model/model.safetensors", "model.norm.weight", "model.norm_weight");
  expect_refused({}, {"model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_prox.weight",
                      "model.norm.weight", "model.norm_weight"});
}

// Names count by whole component: one that merely contains another's is left over.
TEST_F(DamagedFiles, ANameThatContainsAnotherIsNotIt) {
  replace("model/model.safetensors", "model.layers.0.self_attn.q_proj.weight",
          "model.layers.0.self_attn.q_proj_norm.w");
  expect_refused(
      {}, {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj_norm.w"});
}

TEST_F(DamagedFiles, EveryTensorOfAnotherShapeIsNamed) {
  replace("model/config.json", "\"intermediate_size\": 44", "\"intermediate_size\": 45");
  expect_refused({},
                 {"model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.down_proj.weight"});
}

TEST_F(DamagedFiles, AnAdapterThatLacksATensorIsRefused) {
  const std::string module = "base_model.model.model.layers.1.mlp.down_proj";
  replace("a/adapter_model.safetensors", module + ".lora_B.weight", module + ".lora_C.weight");
  expect_refused({folder_ + "/a"}, {module});
}

TEST_F(DamagedFiles, AnAdapterForAModuleTheModelLacksIsRefused) {
  const std::string prefix = "base_model.model.model.layers.",
                    rest = ".mlp.down_proj.lora_A.weight";
  replace("a/adapter_model.safetensors", prefix + "1" + rest, prefix + "7" + rest);
  expect_refused({folder_ + "/a"}, {"layers.7.mlp.down_proj"});
}

TEST_F(DamagedFiles, AnUnknownArchitectureIsNamedWithTheKnownOnes) {
  replace("model/config.json", "LlamaForCausalLM", "LlamoForCausalLM");
  expect_refused({}, {"LlamoForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"});
}

// Some of the tensors of multi-token prediction are no layer: where it takes part those that are
// missing and those that are not known are named.
TEST_F(DamagedFiles, APartOfMultiTokenPredictionIsNamedWhereItTakesPart) {
  copy("qwen3_5_mtp");
  replace("model/model.safetensors", "mtp.fc.weight", "mtp.fx.weight");
  replace("model/model.safetensors", "mtp.layers.0.self_attn.k_norm",
          "mtp.layers.1.self_attn.k_norm");
  expect_refused({},
                 {"'mtp.fc.weight' [20, 40] is missing", "'mtp.fx.weight' [20, 40] is not used",
                  "'mtp.layers.0.self_attn.k_norm.weight' [16] is missing",
                  "'mtp.layers.1.self_attn.k_norm.weight' [16] is not used"},
                 kForwardOfMtp);
  const ProbeResult without =
      run_probe({.model = folder_ + "/model", .request = write_request(kForward)});
  EXPECT_EQ(without.exit_code, 0) << without.message;
}

// Names have another prefix, and images' tensors take no part.
TEST(Loader, ALlama4InsideAMultimodalCheckpointIsTheSame) {
  if (!forced_path_exists()) GTEST_SKIP() << "this CPU lacks the forced path";
  AlteredGolden g("llama4/main");
  const Tensors want = g.run();
  Tensors whole;
  for (auto& [name, tensor] : g.model) whole["language_model." + name] = std::move(tensor);
  whole["vision_model.class_embedding"] = {.dims = {2}, .values = {1.0f, 2.0f}};
  whole["multi_modal_projector.linear_1.weight"] = {.dims = {1, 2}, .values = {1.0f, 2.0f}};
  g.model = std::move(whole);
  g.config = {{"architectures", boost::json::array{"Llama4ForConditionalGeneration"}},
              {"model_type", "llama4"},
              {"text_config", g.config}};
  const Tensors got = g.run();
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_EQ(got.at(name).values, tensor.values) << name;
}

}  // namespace
}  // namespace strata::golden
