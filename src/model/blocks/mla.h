// SPDX-License-Identifier: Apache-2.0
// Latent attention (DeepSeek-V3), in the absorbed form alone: scores and context are taken in
// latent space, against one row a token, [latent | rotated key], which all heads share, of which
// the latent is also the value, and which is all that a KV cache holds. The same form in training,
// prefill and decode, so that they agree bit for bit. Source: HF modeling_deepseek_v3.py,
// DeepseekV3Attention (which expands keys and values instead). See blocks/mla_heads.h.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

// Keys and values of all heads are made of one latent vector a token, with one rotated part that
// the keys share.
struct MlaConfig {
  int64_t num_heads = 0;
  int64_t q_lora_rank = 0;   // 0: queries come from the hidden state directly
  int64_t kv_lora_rank = 0;  // width of the latent
  int64_t nope_dim = 0;      // of a head's query and key, not rotated
  int64_t rope_dim = 0;      // rotated
  int64_t value_dim = 0;     // of a head's value
  bool rope_interleave = true;
  bool bias = false;
  float scale = 1.0f;  // of the scores
  int rope = 0;        // in ModelConfig::ropes
  [[nodiscard]] int64_t head_dim() const { return nope_dim + rope_dim; }
  [[nodiscard]] int64_t q_width() const { return num_heads * head_dim(); }
  [[nodiscard]] int64_t cache_width() const { return kv_lora_rank + rope_dim; }
  // Outputs of kv_b_proj: for each head nope_dim rows of keys, then value_dim rows of values.
  [[nodiscard]] int64_t head_rows() const { return nope_dim + value_dim; }
  friend bool operator==(const MlaConfig&, const MlaConfig&) = default;
};

extern const BlockOps kMla;

// Keys of its parameters.
enum MlaKey : uint8_t {
  kMlaQ,  // without q_lora_rank; else q_a and q_b
  kMlaQA,
  kMlaQB,
  kMlaKvA,
  kMlaKvB,
  kMlaO,
  kMlaQABias,
  kMlaKvABias,
  kMlaOBias,
  kMlaQANorm,
  kMlaKvANorm
};

}  // namespace strata::model
