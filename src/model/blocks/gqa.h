// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention: o_proj(attention(q, k, v)) with q, k, v projected from n, q and k normed
// per head (Qwen3) or over all heads (OLMo 2) and rotated, and with a gate (Qwen3.5):
// o_proj(attention(q, k, v) * sigmoid(g)), where q_proj gives the query and the gate of each head
// in turn; with sinks (gpt-oss) the softmax has one more term a head, and with a cap (Gemma 2) no
// score passes it (ops/attention.h). Values may be normed per head, without a weight, and may be
// the keys' projection itself; a layer may have neither and read those of a layer before it
// (Gemma 4). Queries may see the keys of their chunk alone, and be scaled by their position where
// nothing is rotated (Llama 4). With a KV cache the new keys and values are written to its
// pages first and attention reads the pages; without one it reads them where they were computed:
// the same bits either way. Sources: HF modeling_llama.py, LlamaAttention; modeling_qwen3.py,
// Qwen3Attention; modeling_qwen3_5.py, Qwen3_5Attention; modeling_gpt_oss.py, GptOssAttention;
// modeling_gemma2.py, Gemma2Attention; modeling_gemma4.py, Gemma4TextAttention; modeling_llama4.py,
// Llama4TextAttention.
#pragma once
#include <optional>

#include "model/blocks/block.h"

namespace strata::model {

constexpr int kNoRope = -1;

struct GqaConfig {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 1.0f;      // of the scores
  float score_cap = 0.0f;  // of scaled scores; 0: none
  bool qkv_bias = false;
  bool o_bias = false;
  bool fused_qkv = false;  // files and adapters have q_proj, k_proj and v_proj as one, qkv_proj
  bool keys_are_values = false;  // there is no v_proj: values are k_proj's outputs
  bool v_norm = false;           // of each head of the values, without a weight
  bool gives_kv = false;  // layers behind read its keys and values (model/pass/shared_values.h)
  std::optional<int64_t> kv_layer = {};  // the layer whose keys and values it reads, having none
  bool qk_norm = false;
  bool norms_span_heads = false;       // of q and of k over all heads together, not of each
  bool plain_qk_norm = false;          // of each head, without a weight
  double eps = 1e-6;                   // of these norms
  float norm_offset = 0.0f;            // their multiplier is this plus the weight
  int64_t window = 0;                  // keys a query sees, itself included; 0: all before it
  bool in_chunks = false;              // those of its chunk of so many positions
  int rope = 0;                        // in ModelConfig::ropes; kNoRope: nothing is rotated
  std::optional<int> query_rope = {};  // where that of queries is another one than the keys'
  int64_t rotary_dim = 0;              // columns of a head that are rotated, the first; 0: all
  bool rope_interleave = false;        // their pairs are neighbours, not of two halves
  bool output_gate = false;
  bool sinks = false;
  [[nodiscard]] int64_t q_width() const { return num_heads * head_dim; }
  // The number of q_proj's outputs.
  [[nodiscard]] int64_t q_proj_width() const { return output_gate ? 2 * q_width() : q_width(); }
  [[nodiscard]] int64_t kv_width() const { return num_kv_heads * head_dim; }
  [[nodiscard]] bool has_k_proj() const { return !kv_layer; }
  [[nodiscard]] bool has_v_proj() const { return !kv_layer && !keys_are_values; }
  friend bool operator==(const GqaConfig&, const GqaConfig&) = default;
};

extern const BlockOps kGqa;

}  // namespace strata::model
