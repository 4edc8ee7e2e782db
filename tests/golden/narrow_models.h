// SPDX-License-Identifier: Apache-2.0
// What the tests of models in few bits share: goldens' models with the sizes of whole blocks,
// adapters, and a request for all that a probe computes.
#pragma once
#include <fstream>

#include "tests/golden/export_run.h"
#include "tests/golden/generated_model.h"

namespace strata::golden {

using boost::json::array;
using boost::json::object;
using boost::json::value;

// A golden's config with the sizes of whole blocks.
struct NarrowModel {
  const char* golden;
  object sizes;
};
inline void PrintTo(const NarrowModel& model, std::ostream* out) { *out << model.golden; }

inline const std::vector<NarrowModel>& narrow_models() {
  static const auto* const kModels = new std::vector<NarrowModel>{{"qwen3",
                                                                   {{"hidden_size", 256},
                                                                    {"intermediate_size", 512},
                                                                    {"num_attention_heads", 8},
                                                                    {"num_key_value_heads", 2},
                                                                    {"head_dim", 32}}},
                                                                  {"llama31",
                                                                   {{"hidden_size", 256},
                                                                    {"intermediate_size", 256},
                                                                    {"num_attention_heads", 8},
                                                                    {"num_key_value_heads", 4},
                                                                    {"head_dim", 32}}},
                                                                  {"qwen2",
                                                                   {{"hidden_size", 96},
                                                                    {"intermediate_size", 256},
                                                                    {"num_attention_heads", 4},
                                                                    {"num_key_value_heads", 2}}},
                                                                  {"gemma3",
                                                                   {{"hidden_size", 256},
                                                                    {"intermediate_size", 288},
                                                                    {"num_attention_heads", 4},
                                                                    {"num_key_value_heads", 2},
                                                                    {"head_dim", 64},
                                                                    {"query_pre_attn_scalar", 64}}},
                                                                  {"qwen3_moe",
                                                                   {{"hidden_size", 256},
                                                                    {"intermediate_size", 256},
                                                                    {"moe_intermediate_size", 256},
                                                                    {"num_attention_heads", 8},
                                                                    {"num_key_value_heads", 4},
                                                                    {"head_dim", 32},
                                                                    {"mlp_only_layers", array()}}},
                                                                  {"qwen3_5",
                                                                   {{"hidden_size", 256},
                                                                    {"intermediate_size", 256},
                                                                    {"num_attention_heads", 8},
                                                                    {"num_key_value_heads", 2},
                                                                    {"head_dim", 32},
                                                                    {"linear_key_head_dim", 32},
                                                                    {"linear_value_head_dim", 32}}},
                                                                  {"deepseek_mla",
                                                                   {{"hidden_size", 256},
                                                                    {"intermediate_size", 256},
                                                                    {"moe_intermediate_size", 256},
                                                                    {"kv_lora_rank", 256},
                                                                    {"first_k_dense_replace", 1},
                                                                    {"mlp_layer_types", nullptr}}}};
  return *kModels;
}

// Adapters of rank 3, 5 and 2 over all dense projections of the layers.
inline std::vector<std::string> write_adapters(const std::string& model, const TempDir& folder) {
  const SafetensorsFile file(model + "/model.safetensors");
  array adapters;
  for (const int64_t rank : {3, 5, 2}) {
    array tensors;
    array names;
    for (const TensorInfo& tensor : file.tensors()) {
      if (tensor.shape.rank() != 2 || !tensor.name.ends_with("_proj.weight")) continue;
      if (tensor.name.find("experts.") != std::string::npos) continue;
      const std::string module = tensor.name.substr(0, tensor.name.size() - 7);
      const std::string last = module.substr(module.rfind('.') + 1);
      if (last.starts_with("in_proj_a") || last.starts_with("in_proj_b")) continue;
      if (std::find(names.begin(), names.end(), value(last)) == names.end())
        names.emplace_back(last);
      const std::string path = "base_model.model." + module;
      tensors.push_back({path + ".lora_A.weight", "F32", {rank, tensor.shape[1]}, 0, 60});
      tensors.push_back({path + ".lora_B.weight", "F32", {tensor.shape[0], rank}, 0, 60});
    }
    adapters.push_back({{"config",
                         {{"peft_type", "LORA"},
                          {"r", rank},
                          {"lora_alpha", 16},
                          {"target_modules", names},
                          {"bias", "none"},
                          {"task_type", "CAUSAL_LM"}}},
                        {"tensors", tensors}});
  }
  return write_generated(
             {{"seed", 7}, {"config", object()}, {"files", object()}, {"adapters", adapters}},
             folder.file("adapters"))
      .adapters;
}

// All that a probe computes: forward, every gradient, steps of adapters, samples.
inline std::string write_request(const std::string& golden, const TempDir& folder) {
  const auto read = [&](const char* name) {
    return read_json(kRoot + golden + "/" + name + ".json").as_object();
  };
  object request = read("train_adapters");
  request["want"] = {"hidden_states", "logits", "logprobs", "loss", "adapter_grads", "param_grads"};
  request["train"].as_object()["steps"] = 10;
  request["sample"] = read("sample").at("sample");
  const std::string path = folder.file("request.json");
  std::ofstream(path) << boost::json::serialize(request);
  return path;
}

class NarrowModelTest : public ::testing::TestWithParam<NarrowModel> {
 protected:
  void SetUp() override {
    object config = read_json(kRoot + GetParam().golden + "/model/config.json").as_object();
    for (const auto& [key, size] : GetParam().sizes) config[key] = size;
    std::ofstream(folder_.file("config.json")) << boost::json::serialize(config);
    run(fmt::format("init --config '{}' --dtype bf16 --seed 1 --out '{}'",
                    folder_.file("config.json"), folder_.file("model")));
    if (HasFatalFailure()) return;
    adapters_ = write_adapters(folder_.file("model"), folder_);
    request_ = write_request(GetParam().golden, folder_);
  }
  void run(const std::string& arguments) {
    std::string printed;
    ASSERT_EQ(run_program(arguments, folder_, &printed), 0) << arguments << "\n" << printed;
  }
  // Of the model under that name in the folder.
  Tensors probe(const std::string& name, const std::string& weights,
                std::vector<std::string> options = {}) {
    options.insert(options.end(), {"--dtype", "bf16", "--weights", weights});
    ProbeResult result = run_probe({.model = folder_.file(name),
                                    .adapters = adapters_,
                                    .request = request_,
                                    .options = options});
    EXPECT_EQ(result.exit_code, 0) << result.message;
    return std::move(result.tensors);
  }
  static void expect_equal(const Tensors& got, const Tensors& want) {
    EXPECT_FALSE(want.empty());
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) {
      const auto found = got.find(name);
      ASSERT_NE(found, got.end()) << name;
      ASSERT_EQ(found->second.dims, tensor.dims) << name;
      for (const float x : tensor.values) ASSERT_TRUE(std::isfinite(x)) << name;
      EXPECT_EQ(std::memcmp(found->second.values.data(), tensor.values.data(),
                            tensor.values.size() * sizeof(float)),
                0)
          << name;
    }
  }

  TempDir folder_;
  std::vector<std::string> adapters_;
  std::string request_;
};

}  // namespace strata::golden
