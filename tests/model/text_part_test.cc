// SPDX-License-Identifier: Apache-2.0
// A model inside a checkpoint of several modalities: its adapters have the names of the whole, and
// a saved model keeps the tensors of the other parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/safetensors.h"
#include "model/adapter/io.h"
#include "model/weights/load.h"
#include "model/weights/save.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata::model {
namespace {

using ::testing::HasSubstr;

const std::string kGolden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/";

class TextPartFiles : public ::testing::TestWithParam<const char*> {
 protected:
  CpuBackend backend_{choose_cpu_path(), 2};
  std::string source_ = kGolden + GetParam() + "/model";
  std::string out_ = ::testing::TempDir() + "text_part_" + GetParam();
  void TearDown() override { std::filesystem::remove_all(out_); }
};

std::vector<float> values_of(const CheckpointDir& dir, const CheckpointTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.info.shape.num_elements()));
  dir.read_f32(tensor, 0, std::ssize(values), values.data());
  return values;
}

TEST_P(TextPartFiles, ASavedModelHasEveryTensorOfItsSource) {
  const LoadedModel model = load_model(backend_, source_, {.compute_dtype = DType::kF32});
  EXPECT_FALSE(model.ignored.empty());
  save_model(backend_, model, out_, /*trained=*/nullptr);
  const CheckpointDir before(source_), after(out_);
  EXPECT_EQ(after.tensors().size(), before.tensors().size());
  for (const CheckpointTensor& tensor : before.tensors()) {
    const CheckpointTensor* saved = after.find(tensor.info.name);
    ASSERT_NE(saved, nullptr) << tensor.info.name;
    EXPECT_EQ(saved->info.dtype, tensor.info.dtype) << tensor.info.name;
    EXPECT_EQ(values_of(after, *saved), values_of(before, tensor)) << tensor.info.name;
  }
}

TEST_P(TextPartFiles, AnAdapterHasTheNamesOfTheWhole) {
  const LoadedModel model = load_model(backend_, source_, {.compute_dtype = DType::kF32});
  LoraAdapter adapter(backend_, *model.weights,
                      make_adapter_specs(model.config, {"all-linear", "embed_tokens"}, 2, 4.0));
  adapter.initialise(1);
  save_adapter(adapter, out_, "base");
  const SafetensorsFile file(out_ + "/adapter_model.safetensors");
  const std::string prefix = "base_model.model.model.language_model.";
  EXPECT_NE(file.find(prefix + "layers.1.mlp.up_proj.lora_A.weight"), nullptr);
  EXPECT_NE(file.find(prefix + "embed_tokens.lora_embedding_A"), nullptr);
  const auto again = load_adapter(backend_, model, out_);
  ASSERT_EQ(again->modules().size(), adapter.modules().size());
  for (const LoraModule& module : adapter.modules()) {
    const LoraModule* same = again->find_module(module.spec.layer, module.spec.target);
    ASSERT_NE(same, nullptr) << module.path;
    const int64_t count = module.a.shape.num_elements();
    EXPECT_TRUE(std::equal(module.a.f32(), module.a.f32() + count, same->a.f32())) << module.path;
  }
}

// Made on the text model alone, with a copy of the base's embedding, as PEFT writes it.
TEST_P(TextPartFiles, AnAdapterOfTheTextModelAloneFits) {
  const LoadedModel model = load_model(backend_, source_, {.compute_dtype = DType::kF32});
  LoraAdapter adapter(backend_, *model.weights,
                      make_adapter_specs(model.config, {"q_proj", "embed_tokens"}, 2, 4.0));
  adapter.initialise(1);
  save_adapter(adapter, out_, "base");
  const std::string path = out_ + "/adapter_model.safetensors";
  const std::string bytes = read_file(path, 1 << 24);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  std::string header = bytes.substr(8, size), data = bytes.substr(8 + size);
  const std::string whole = "model.language_model.";
  for (size_t at = header.find(whole); at != std::string::npos; at = header.find(whole)) {
    header.replace(at, whole.size(), "model.");
  }
  const ModelWeights& weights = *model.weights;
  const Shape& shape = weights.table()[weights.embedding_index()].shape;
  Tensor copy(cpu_allocator(), DType::kF32, shape);
  weights.read_rows(backend_, weights.embedding_index(), 0, copy);
  const auto begin = static_cast<int64_t>(data.size());
  data.append(static_cast<const char*>(copy.view().data),
              static_cast<size_t>(copy.view().num_bytes()));
  header.insert(
      header.rfind('}'),
      "," + strata::testing::entry("base_model.model.model.embed_tokens.base_layer.weight", "F32",
                                   shape.to_string(), begin, static_cast<int64_t>(data.size())));
  std::ofstream(path, std::ios::binary) << strata::testing::safetensors_bytes(header, data);
  EXPECT_EQ(load_adapter(backend_, model, out_)->modules().size(), adapter.modules().size());
  // A copy of another base is told, not taken.
  data.back() = static_cast<char>(data.back() ^ 1);
  data[data.size() - 2] = 0x40;
  std::ofstream(path, std::ios::binary) << strata::testing::safetensors_bytes(header, data);
  try {
    load_adapter(backend_, model, out_);
    FAIL() << "a copy that differs";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("differs from the model's"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TextPartFiles,
                         ::testing::Values("gemma3_vision", "gemma3_vision_hub", "qwen3_5_vision",
                                           "qwen3_5_vision_hub"));

std::string message_of(const std::string& text) {
  try {
    parse_config(text, "c", false);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TextPart, WhatChangesTheModelIsRefusedByName) {
  const auto gemma = [](const std::string& extra) {
    return R"({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"hidden_size": 32,
      "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 64,
      "intermediate_size": 48, "head_dim": 16)" +
           extra + "}}";
  };
  EXPECT_EQ(message_of(gemma("")), "");
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    EXPECT_EQ(message_of(gemma(std::string(", \"") + key + "\": null")), "") << key;
    EXPECT_THAT(message_of(gemma(std::string(", \"") + key + "\": 30.0")), HasSubstr(key));
  }
  EXPECT_THAT(message_of(gemma(R"(, "use_bidirectional_attention": true)")),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(message_of(gemma(R"(, "hidden_activation": "silu")")),
              HasSubstr("hidden_activation"));
  EXPECT_THAT(message_of(gemma(R"(, "layer_types": ["chunked_attention", "full_attention"])")),
              HasSubstr("chunked_attention"));
  EXPECT_THAT(message_of(R"({"architectures": ["Gemma3ForConditionalGeneration"]})"),
              HasSubstr("text_config"));
  EXPECT_THAT(message_of(R"({"architectures": ["Gemma3nForCausalLM"]})"),
              HasSubstr("Gemma3nForCausalLM"));
}

}  // namespace
}  // namespace strata::model
