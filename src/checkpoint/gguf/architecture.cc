// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace strata {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .model_class = "LlamaForCausalLM",
     .model_type = "llama",
     .paired_heads = true},
    {.name = "qwen2", .model_class = "Qwen2ForCausalLM", .model_type = "qwen2"},
    {.name = "qwen3", .model_class = "Qwen3ForCausalLM", .model_type = "qwen3"},
    {.name = "qwen3moe", .model_class = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe"},
    {.name = "qwen35",
     .model_class = "Qwen3_5ForCausalLM",
     .model_type = "qwen3_5_text",
     .norms_plus_one = true,
     .is_hybrid = true},
    {.name = "qwen35moe",
     .model_class = "Qwen3_5MoeForCausalLM",
     .model_type = "qwen3_5_moe_text",
     .norms_plus_one = true,
     .is_hybrid = true},
    {.name = "gemma3",
     .model_class = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .norms_plus_one = true},
    {.name = "gemma4",
     .model_class = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .experts = "experts.",
     .fuses_gate_up = true,
     .tokenizer = "gemma4"},
    {.name = "deepseek2",
     .model_class = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .has_mla = true},
    {.name = "gpt-oss",
     .model_class = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .has_sinks = true},
    {.name = "llama4",
     .model_class = "Llama4ForCausalLM",
     .model_type = "llama4_text",
     .experts = "feed_forward.experts."},
};

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  for (const GgufArchitecture& row : kArchitectures) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

const GgufArchitecture& gguf_architecture(const GgufModel& model) {
  if (const GgufArchitecture* row = find_gguf_architecture(model.architecture())) return *row;
  std::vector<std::string_view> known;
  for (const GgufArchitecture& row : kArchitectures) known.push_back(row.name);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: general.architecture: got '{}', known are {}", model.keys().where(),
                          model.architecture(), fmt::join(known, ", ")));
}

std::string gguf_key(const GgufModel& model, std::string_view key) {
  return fmt::format("{}.{}", model.architecture(), key);
}

int64_t gguf_num_layers(const GgufModel& model) {
  const std::string key = gguf_key(model, "block_count");
  const int64_t blocks = model.keys().integer(key);
  const int64_t extra = model.keys().integer(gguf_key(model, "nextn_predict_layers"), 0);
  constexpr int64_t kMostLayers = 10000;
  if (blocks < 0 || blocks > kMostLayers || extra < 0 || extra > blocks) {
    model.keys().fail(
        key, fmt::format("got {} with {} of them of multi-token prediction, want 0 to {}", blocks,
                         extra, kMostLayers));
  }
  return blocks - extra;
}

}  // namespace strata
