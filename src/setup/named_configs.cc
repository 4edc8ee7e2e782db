// SPDX-License-Identifier: Apache-2.0
#include "setup/named_configs.h"

namespace strata::apps {
namespace {

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
    {"qwen3-next-80b-a3b", R"({
  "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048,
  "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
  "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 512,
  "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-06, "rope_theta": 10000000, "partial_rotary_factor": 0.25, "tie_word_embeddings": false,
  "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.02, "eos_token_id": 151645,
  "torch_dtype": "bfloat16"
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
    {"gpt-oss-20b", R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
  "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
  "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "swiglu_limit": 7.0, "sliding_window": 128,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 150000,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
    "original_max_position_embeddings": 4096},
  "tie_word_embeddings": false, "attention_bias": true, "hidden_act": "silu", "initializer_range": 0.02,
  "eos_token_id": 200002, "pad_token_id": 199999, "torch_dtype": "bfloat16",
  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
    "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
}
)"},
    {"gpt-oss-120b", R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
  "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
  "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_limit": 7.0, "sliding_window": 128,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 150000,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
    "original_max_position_embeddings": 4096},
  "tie_word_embeddings": false, "attention_bias": true, "hidden_act": "silu", "initializer_range": 0.02,
  "eos_token_id": 200002, "pad_token_id": 199999, "torch_dtype": "bfloat16",
  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
    "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
}
)"},
    {"gpt-oss-tiny", R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 64,
  "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 4, "swiglu_limit": 7.0, "sliding_window": 128,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 150000,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
    "original_max_position_embeddings": 4096},
  "tie_word_embeddings": false, "attention_bias": true, "hidden_act": "silu", "initializer_range": 0.02,
  "eos_token_id": 200002, "pad_token_id": 199999, "torch_dtype": "bfloat16"
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
    {"qwen3-1.7b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
  "num_key_value_heads": 8, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "eos_token_id": 151645, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
  "num_attention_heads": 16, "tie_word_embeddings": true, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"qwen3-4b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
  "num_key_value_heads": 8, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "eos_token_id": 151645, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
  "num_attention_heads": 32, "tie_word_embeddings": true, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"qwen3-8b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
  "num_key_value_heads": 8, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "eos_token_id": 151645, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
  "num_attention_heads": 32, "tie_word_embeddings": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"qwen3-14b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
  "num_key_value_heads": 8, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "eos_token_id": 151645, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40,
  "num_attention_heads": 40, "tie_word_embeddings": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"qwen3-32b", R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
  "num_key_value_heads": 8, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "eos_token_id": 151645, "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
  "num_attention_heads": 64, "tie_word_embeddings": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"qwen3-30b-a3b", R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936, "head_dim": 128,
  "num_key_value_heads": 4, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "eos_token_id": 151645, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
  "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "num_hidden_layers": 48,
  "num_attention_heads": 32, "tie_word_embeddings": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"llama-3.2-3b", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
  "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000, "eos_token_id":
  128001, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
  "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"llama-3.1-8b", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
  "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000, "eos_token_id":
  128001, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "tie_word_embeddings": false, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"llama-3.1-70b", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
  "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000, "eos_token_id":
  128001, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
  "tie_word_embeddings": false, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"mistral-7b", R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 8, "head_dim": 128,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
  "num_attention_heads": 32, "intermediate_size": 14336, "eos_token_id": 2, "vocab_size": 32768, "hidden_size":
  4096, "num_hidden_layers": 32, "max_position_embeddings": 32768, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"mistral-nemo-12b", R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 8, "head_dim": 128,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
  "num_attention_heads": 32, "intermediate_size": 14336, "eos_token_id": 2, "vocab_size": 131072, "hidden_size":
  5120, "num_hidden_layers": 40, "max_position_embeddings": 131072, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"mixtral-8x7b", R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_key_value_heads": 8, "rms_norm_eps":
  1e-05, "rope_theta": 1000000, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false,
  "eos_token_id": 2, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
  32, "num_attention_heads": 32, "max_position_embeddings": 32768, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"mixtral-8x22b", R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_key_value_heads": 8, "rms_norm_eps":
  1e-05, "rope_theta": 1000000, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false,
  "eos_token_id": 2, "vocab_size": 32768, "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers":
  56, "num_attention_heads": 48, "max_position_embeddings": 65536, "initializer_range": 0.02, "torch_dtype":
  "bfloat16"
}
)"},
    {"ministral-3-3b", R"({
  "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "vocab_size": 131072,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-05, "eos_token_id": 2, "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers":
  26, "tie_word_embeddings": true, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"ministral-3-8b", R"({
  "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "vocab_size": 131072,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-05, "eos_token_id": 2, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
  34, "tie_word_embeddings": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"ministral-3-14b", R"({
  "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "vocab_size": 131072,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-05, "eos_token_id": 2, "hidden_size": 5120, "intermediate_size": 16384, "num_hidden_layers":
  40, "tie_word_embeddings": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"granite-3.3-2b", R"({
  "architectures": ["GraniteForCausalLM"], "model_type": "granite", "vocab_size": 49159, "num_hidden_layers": 40,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "rope_theta": 10000000, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "tie_word_embeddings": true,
  "eos_token_id": 0, "hidden_size": 2048, "intermediate_size": 8192, "attention_multiplier": 0.015625,
  "logits_scaling": 8.0, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"granite-3.3-8b", R"({
  "architectures": ["GraniteForCausalLM"], "model_type": "granite", "vocab_size": 49159, "num_hidden_layers": 40,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "rope_theta": 10000000, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "tie_word_embeddings": true,
  "eos_token_id": 0, "hidden_size": 4096, "intermediate_size": 12800, "attention_multiplier": 0.0078125,
  "logits_scaling": 16.0, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"smollm3-3b", R"({
  "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "vocab_size": 128256, "hidden_size": 2048,
  "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
  "max_position_embeddings": 65536, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0, "tie_word_embeddings": true,
  "eos_token_id": 128012, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-2b", R"({
  "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "vocab_size": 256000, "head_dim": 256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000, "hidden_act": "gelu_pytorch_tanh",
  "tie_word_embeddings": true, "eos_token_id": 1, "hidden_size": 2048, "intermediate_size": 16384,
  "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "initializer_range": 0.02,
  "torch_dtype": "bfloat16"
}
)"},
    {"gemma-7b", R"({
  "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "vocab_size": 256000, "head_dim": 256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000, "hidden_act": "gelu_pytorch_tanh",
  "tie_word_embeddings": true, "eos_token_id": 1, "hidden_size": 3072, "intermediate_size": 24576,
  "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "initializer_range": 0.02,
  "torch_dtype": "bfloat16"
}
)"},
    {"gemma-2-2b", R"({
  "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 256000, "head_dim": 256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "eos_token_id": 1, "hidden_size": 2304,
  "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
  "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-2-9b", R"({
  "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 256000, "head_dim": 256,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "eos_token_id": 1, "hidden_size": 3584,
  "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
  "sliding_window": 4096, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-2-27b", R"({
  "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 256000, "head_dim": 128,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "eos_token_id": 1, "hidden_size": 4608,
  "intermediate_size": 36864, "num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16,
  "sliding_window": 4096, "query_pre_attn_scalar": 144, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-3-1b", R"({
  "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "max_position_embeddings": 32768,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262144,
  "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
  "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-3-4b", R"({
  "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262208,
  "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
  "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024, "query_pre_attn_scalar": 256, "rope_scaling":
  {"rope_type": "linear", "factor": 8.0}, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-3-12b", R"({
  "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262208,
  "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
  "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 1024, "query_pre_attn_scalar": 256, "rope_scaling":
  {"rope_type": "linear", "factor": 8.0}, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-3-27b", R"({
  "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262208,
  "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
  "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "query_pre_attn_scalar": 168,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-4-12b", R"({
  "architectures": ["Gemma4UnifiedForCausalLM"], "model_type": "gemma4_unified_text", "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262144,
  "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
  "num_key_value_heads": 8, "num_global_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
  "attention_k_eq_v": true, "sliding_window": 1024, "final_logit_softcapping": 30.0,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-4-26b-a4b", R"({
  "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262144,
  "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
  "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
  "attention_k_eq_v": true, "sliding_window": 1024, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0,
  "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-4-31b", R"({
  "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "max_position_embeddings": 262144,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262144,
  "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
  "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
  "attention_k_eq_v": true, "sliding_window": 1024, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-4-e2b", R"({
  "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262144,
  "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
  "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
  "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention"],
  "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
  "num_kv_shared_layers": 20, "use_double_wide_mlp": true, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"gemma-4-e4b", R"({
  "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "eos_token_id": [1, 106], "vocab_size": 262144,
  "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "num_attention_heads": 8,
  "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
  "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
  "num_kv_shared_layers": 18, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"llama-4-scout", R"({
  "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "max_position_embeddings": 10485760,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "eos_token_id": [200001, 200007, 200008], "vocab_size": 202048,
  "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
  "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16,
  "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "use_qk_norm": true, "attention_chunk_size": 8192,
  "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
  "high_freq_factor": 1.0, "original_max_position_embeddings": 8192},
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"llama-4-maverick", R"({
  "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "max_position_embeddings": 1048576,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "eos_token_id": [200001, 200007, 200008], "vocab_size": 202048,
  "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
  "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 128,
  "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": false, "attention_chunk_size": 8192,
  "rope_theta": 500000.0, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"phi-4-mini", R"({
  "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 200064, "hidden_size": 3072,
  "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8,
  "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.0, 1.0,
  1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
  1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
  "long_factor": [1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649,
  2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533,
  5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252,
  16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6,
  32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77]}, "sliding_window": 262144,
  "tie_word_embeddings": true, "hidden_act": "silu", "initializer_range": 0.02, "bos_token_id": 199999,
  "eos_token_id": 199999, "torch_dtype": "bfloat16"
}
)"},
    {"phi-4", R"({
  "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 100352, "hidden_size": 5120,
  "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10,
  "max_position_embeddings": 16384, "original_max_position_embeddings": 16384, "rms_norm_eps": 1e-05, "rope_theta":
  250000, "rope_scaling": null, "sliding_window": null, "tie_word_embeddings": false, "hidden_act": "silu",
  "initializer_range": 0.02, "bos_token_id": 100257, "eos_token_id": 100257, "torch_dtype": "bfloat16"
}
)"},
    {"lfm2-350m", R"({
  "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 65536, "max_position_embeddings": 128000,
  "norm_eps": 1e-05, "rope_theta": 1000000.0, "conv_L_cache": 3, "conv_bias": false, "block_auto_adjust_ff_dim": true,
  "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 1024,
  "block_ff_dim": 6656, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "eos_token_id": 7,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"lfm2-700m", R"({
  "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 65536, "max_position_embeddings": 128000,
  "norm_eps": 1e-05, "rope_theta": 1000000.0, "conv_L_cache": 3, "conv_bias": false, "block_auto_adjust_ff_dim": true,
  "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 1536,
  "block_ff_dim": 10240, "num_hidden_layers": 16, "num_attention_heads": 24, "num_key_value_heads": 8, "eos_token_id": 7,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"lfm2-1.2b", R"({
  "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": 65536, "max_position_embeddings": 128000,
  "norm_eps": 1e-05, "rope_theta": 1000000.0, "conv_L_cache": 3, "conv_bias": false, "block_auto_adjust_ff_dim": true,
  "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
  "block_ff_dim": 12288, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "eos_token_id": 7,
  "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"olmo-2-7b", R"({
  "vocab_size": 100352, "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": false, "eos_token_id":
  100257, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "max_position_embeddings": 4096,
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"olmo-2-13b", R"({
  "vocab_size": 100352, "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": false, "eos_token_id":
  100257, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "max_position_embeddings": 4096,
  "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
  "num_key_value_heads": 40, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"olmo-3-7b", R"({
  "vocab_size": 100278, "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": false, "eos_token_id":
  100257, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "max_position_embeddings": 65536,
  "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
  "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0}, "sliding_window": 4096,
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"olmo-3-32b", R"({
  "vocab_size": 100278, "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": false, "eos_token_id":
  100257, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "max_position_embeddings": 65536,
  "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
  "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0}, "sliding_window": 4096,
  "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
  "num_key_value_heads": 8, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"glm-4.5-air", R"({
  "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 151552, "num_attention_heads":
  96, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000, "partial_rotary_factor": 0.5, "attention_bias": true, "num_experts_per_tok": 8,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "tie_word_embeddings": false,
  "eos_token_id": [151329, 151336, 151338], "hidden_size": 4096, "intermediate_size": 10944,
  "moe_intermediate_size": 1408, "num_hidden_layers": 46, "n_routed_experts": 128, "first_k_dense_replace": 1,
  "routed_scaling_factor": 1.0, "use_qk_norm": false, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"glm-4.5", R"({
  "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 151552, "num_attention_heads":
  96, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000, "partial_rotary_factor": 0.5, "attention_bias": true, "num_experts_per_tok": 8,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "tie_word_embeddings": false,
  "eos_token_id": [151329, 151336, 151338], "hidden_size": 5120, "intermediate_size": 12288,
  "moe_intermediate_size": 1536, "num_hidden_layers": 92, "n_routed_experts": 160, "first_k_dense_replace": 3,
  "routed_scaling_factor": 2.5, "use_qk_norm": true, "initializer_range": 0.02, "torch_dtype": "bfloat16"
}
)"},
    {"deepseek-v3", R"({
  "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61, "q_lora_rank": 1536,
  "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts_per_tok":
  8, "moe_intermediate_size": 2048, "intermediate_size": 18432, "norm_topk_prob": true, "n_shared_experts": 1,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "model_type": "deepseek_v3", "vocab_size": 129280,
  "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_group": 8, "topk_group": 4,
  "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "max_position_embeddings": 163840, "rope_theta":
  10000, "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
  "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, "eos_token_id": 1, "initializer_range": 0.02,
  "torch_dtype": "bfloat16"
}
)"},
    {"kimi-k2", R"({
  "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61, "q_lora_rank": 1536,
  "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts_per_tok":
  8, "moe_intermediate_size": 2048, "intermediate_size": 18432, "norm_topk_prob": true, "n_shared_experts": 1,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "model_type": "kimi_k2", "vocab_size": 163840,
  "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "n_group": 1, "topk_group": 1,
  "first_k_dense_replace": 1, "routed_scaling_factor": 2.827, "max_position_embeddings": 131072, "rope_theta":
  50000.0, "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast":
  1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}, "eos_token_id": 163585, "initializer_range": 0.02,
  "torch_dtype": "bfloat16"
}
)"},
};

}  // namespace

std::span<const NamedConfig> named_configs() { return kNamed; }

}  // namespace strata::apps
