// SPDX-License-Identifier: Apache-2.0
#include "setup/config_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"

namespace strata::apps {
namespace {

struct NamedConfig {
  std::string_view name;
  std::string_view json;
};

// The shapes that the models' own config.json files give.
constexpr NamedConfig kNamed[] = {
    {"qwen3-0.6b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
  "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
  "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.02,
  "bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16"
}
)"},
    {"qwen3.5-0.8b", R"({
  "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024,
  "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
  "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-06,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
  "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.02,
  "eos_token_id": 248044, "torch_dtype": "bfloat16"
}
)"},
    {"deepseek-v4-tiny", R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280, "hidden_size": 64,
  "num_hidden_layers": 43, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 32,
  "q_lora_rank": 16, "o_groups": 4, "o_lora_rank": 16, "sliding_window": 32, "index_n_heads": 4, "index_head_dim": 32,
  "index_topk": 16, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 64,
  "routed_scaling_factor": 1.5, "num_hash_layers": 3, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
  "hc_eps": 1e-06, "scoring_func": "sqrtsoftplus", "rms_norm_eps": 1e-06, "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1},
  "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4],
  "max_position_embeddings": 1048576, "tie_word_embeddings": false, "attention_bias": false, "hidden_act": "silu",
  "initializer_range": 0.02, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"
}
)"},
    {"smollm2-135m", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
  "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
  "head_dim": 64, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000,
  "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.041666666666666664,
  "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"
}
)"},
    {"llama-3.2-1b", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
  "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
  "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000,
  "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192},
  "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.02,
  "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16"
}
)"},
    {"llama2-7b", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
  "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000,
  "tie_word_embeddings": false, "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.02,
  "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16"
}
)"},
};

[[noreturn]] void refuse_config(const std::string& option, const std::string& config) {
  throw Error(
      ErrorCode::kNotFound,
      fmt::format(
          "--{}: got '{}', want a model directory, a GGUF file, a config.json, or one of {}",
          option, config, config_names_text()));
}

}  // namespace

ConfigSource read_config_source(const std::string& option, const std::string& config) {
  constexpr int64_t kMaxConfigBytes = 16 << 20;
  for (const NamedConfig& named : kNamed) {
    if (named.name == config) return {std::string(named.json), std::string(named.name), ""};
  }
  if (std::filesystem::is_directory(config) || is_gguf(config)) {
    const ModelTexts texts = open_texts(config);
    return {texts.read("config.json", kMaxConfigBytes), texts.where("config.json"), config, texts};
  }
  if (!file_exists(config)) refuse_config(option, config);
  return {read_file(config, kMaxConfigBytes), config, ""};
}

std::string config_names_text() {
  std::string names;
  for (const NamedConfig& named : kNamed)
    names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

}  // namespace strata::apps
