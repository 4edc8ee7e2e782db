// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/shapes.h"

#include <array>
#include <boost/json.hpp>

#include "base/check.h"
#include "model/blocks/attention_config.h"
#include "model/blocks/compressed/compressed_attention.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_delta_net.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/blocks/mla.h"
#include "model/connectors/hyper_connection.h"
#include "model/families/family.h"
#include "setup/config_source.h"

namespace strata::apps {
namespace {

using model::Block;
using model::ModelConfig;

ModelConfig config_with_sizes(std::string_view family, std::string_view architecture,
                              int64_t vocab_size, int64_t hidden_size, int64_t max_positions) {
  ModelConfig c;
  c.family = family;
  c.architecture = architecture;
  c.vocab_size = vocab_size;
  c.hidden_size = hidden_size;
  c.max_position_embeddings = max_positions;
  return c;
}

Block make_qwen3_attention(ModelConfig& c, int64_t num_heads, int64_t num_kv_heads) {
  constexpr int64_t kHeadDim = 128;
  return Block(model::kGqa, model::GqaConfig{.num_heads = num_heads,
                                             .num_kv_heads = num_kv_heads,
                                             .head_dim = kHeadDim,
                                             .scale = model::plain_attention_scale(kHeadDim),
                                             .qk_norm = true,
                                             .rope = c.ensure_rope({{.theta = 1e6}, kHeadDim})});
}

ModelConfig qwen3_06b_config() {
  ModelConfig c = config_with_sizes("qwen3", "Qwen3ForCausalLM", 151936, 1024, 40960);
  c.tie_word_embeddings = true;
  const Block attention = make_qwen3_attention(c, 16, 8);
  const Block mlp(model::kGatedMlp, model::GatedMlpConfig{.width = 3072});
  c.layers.assign(28, model::make_pre_norm_layer(c, attention, mlp));
  return c;
}

ModelConfig qwen3_30b_a3b_config() {
  ModelConfig c = config_with_sizes("qwen3_moe", "Qwen3MoeForCausalLM", 32768, 2048, 40960);
  const Block attention = make_qwen3_attention(c, 32, 4);
  const Block experts(
      model::kMoe,
      model::MoeConfig{.num_experts = 128, .top_k = 8, .expert_width = 768, .norm_topk = true});
  c.layers.assign(4, model::make_pre_norm_layer(c, attention, experts));
  return c;
}

// Three gated delta nets to one attention with an output gate.
ModelConfig qwen35_08b_config() {
  ModelConfig c = config_with_sizes("qwen3_5", "Qwen3_5ForCausalLM", 248320, 1024, 262144);
  c.tie_word_embeddings = true;
  c.norm_offset = 1.0f;
  constexpr int64_t kHeadDim = 256, kRotaryDim = 64;
  const Block attention(model::kGqa,
                        model::GqaConfig{.num_heads = 8,
                                         .num_kv_heads = 2,
                                         .head_dim = kHeadDim,
                                         .scale = model::plain_attention_scale(kHeadDim),
                                         .qk_norm = true,
                                         .norm_offset = 1.0f,
                                         .rope = c.ensure_rope({{.theta = 1e7}, kRotaryDim}),
                                         .rotary_dim = kRotaryDim,
                                         .output_gate = true});
  const Block delta_net(model::kGatedDeltaNet, model::GatedDeltaNetConfig{.num_key_heads = 16,
                                                                          .num_value_heads = 16,
                                                                          .key_dim = 128,
                                                                          .value_dim = 128,
                                                                          .conv_width = 4});
  const Block mlp(model::kGatedMlp, model::GatedMlpConfig{.width = 3584});
  for (int layer = 1; layer <= 24; ++layer) {
    c.layers.push_back(model::make_pre_norm_layer(c, layer % 4 == 0 ? attention : delta_net, mlp));
  }
  return c;
}

ModelConfig deepseek_v3_attention_config() {
  ModelConfig c = config_with_sizes("deepseek_v3", "DeepseekV3ForCausalLM", 32768, 7168, 163840);
  const Block attention(model::kMla, model::MlaConfig{.num_heads = 128,
                                                      .q_lora_rank = 1536,
                                                      .kv_lora_rank = 512,
                                                      .nope_dim = 128,
                                                      .rope_dim = 64,
                                                      .value_dim = 128,
                                                      .scale = model::plain_attention_scale(192),
                                                      .rope = c.ensure_rope({{}, 64})});
  const Block mlp(model::kGatedMlp, model::GatedMlpConfig{.width = 2048});
  c.layers.assign(2, model::make_pre_norm_layer(c, attention, mlp));
  return c;
}

constexpr int64_t kFlashStreams = 4;

// `names`: of fn, base and scale.
model::Connector make_hyper_connection(std::string_view norm,
                                       const std::array<std::string_view, 3>& names) {
  return model::Connector(model::kHyperConnection,
                          model::HyperConnectionConfig{.norm = norm,
                                                       .fn = names[0],
                                                       .base = names[1],
                                                       .scale = names[2],
                                                       .num_streams = kFlashStreams,
                                                       .steps = 20});
}

// Compressed sparse and heavily compressed layers in turn, as all of Flash's but the first two.
ModelConfig deepseek_v4_flash_config() {
  ModelConfig c = config_with_sizes("deepseek_v4", "DeepseekV4ForCausalLM", 32768, 4096, 1048576);
  c.streams = model::Streams(model::kHyperHead, kFlashStreams, model::HyperHeadConfig{});
  const model::RopeConfig rope = {.theta = 160000.0};
  model::CompressedAttentionConfig heavy = {.num_heads = 64,
                                            .head_dim = 512,
                                            .rope_dim = 64,
                                            .q_lora_rank = 1024,
                                            .num_groups = 8,
                                            .o_lora_rank = 1024,
                                            .window = 128,
                                            .ratio = 128,
                                            .rope = c.ensure_rope({rope, 64})};
  model::CompressedAttentionConfig sparse = heavy;
  sparse.ratio = 4;
  sparse.overlap = true;
  sparse.index_heads = 64;
  sparse.index_dim = 128;
  sparse.top_k = 512;
  const Block experts(model::kMoe, model::MoeConfig{.num_experts = 16,
                                                    .top_k = 6,
                                                    .expert_width = 2048,
                                                    .shared_width = 2048,
                                                    .router = model::RouterKind::kSqrtSoftplus,
                                                    .norm_topk = true,
                                                    .scale = 1.5,
                                                    .clamp = {.limit = 10.0f}});
  for (int layer = 0; layer < 4; ++layer) {
    c.layers.push_back({{make_hyper_connection("input_layernorm.weight",
                                               {"attn_hc.fn", "attn_hc.base", "attn_hc.scale"}),
                         Block(model::kCompressedAttention, layer % 2 == 0 ? sparse : heavy)},
                        {make_hyper_connection("post_attention_layernorm.weight",
                                               {"ffn_hc.fn", "ffn_hc.base", "ffn_hc.scale"}),
                         experts}});
  }
  return c;
}

// Four layers of a published model, with these keys in place of its own.
ModelConfig four_layers_of(const char* name, const boost::json::object& keys) {
  const ConfigSource source = read_config_source("config", name);
  boost::json::object config = boost::json::parse(source.json).as_object();
  config["num_hidden_layers"] = 4;
  config["vocab_size"] = 32768;
  config["eos_token_id"] = nullptr;
  config["pad_token_id"] = nullptr;
  for (const auto& [key, value] : keys) config[key] = value;
  return model::parse_config(boost::json::serialize(config), source.where, /*strict=*/true).config;
}

ModelConfig gemma4_e4b_config() {
  return four_layers_of(
      "gemma-4-e4b",
      {{"num_kv_shared_layers", 2},
       {"vocab_size_per_layer_input", 32768},
       {"layer_types",
        {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}});
}

}  // namespace

model::ModelConfig bench_config(BenchShape shape) {
  switch (shape) {
    case BenchShape::kQwen3Dense:
      return qwen3_06b_config();
    case BenchShape::kQwen3Moe:
      return qwen3_30b_a3b_config();
    case BenchShape::kDeltaNet:
      return qwen35_08b_config();
    case BenchShape::kDeepseekV4:
      return deepseek_v4_flash_config();
    case BenchShape::kLatent:
      return deepseek_v3_attention_config();
    case BenchShape::kGptOss:
      return four_layers_of("gpt-oss-20b", {});
    case BenchShape::kGemma4:
      return gemma4_e4b_config();
  }
  CHECK(false);
  __builtin_unreachable();
}

}  // namespace strata::apps
