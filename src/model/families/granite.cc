// SPDX-License-Identifier: Apache-2.0
// Granite 3 and 4 (dense), and GraniteMoE: Llama's layers with multipliers of the embedding, the
// scores and each branch, and logits that are divided by a number.
// Sources: HF modeling_granite.py, configuration_granite.py, modeling_granitemoe.py,
// configuration_granitemoe.py, as all defaults here; conversion_mapping.py for names in files.
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/connectors/pre_norm_add.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"GraniteForCausalLM"};
constexpr std::string_view kTypes[] = {"granite"};
constexpr std::string_view kRead[] = {"mlp_bias", "embedding_multiplier", "logits_scaling",
                                      "residual_multiplier", "attention_multiplier"};
constexpr std::string_view kMoeArchitectures[] = {"GraniteMoeForCausalLM"};
constexpr std::string_view kMoeTypes[] = {"granitemoe"};
constexpr std::string_view kMoeRead[] = {"num_local_experts",    "num_experts_per_tok",
                                         "embedding_multiplier", "logits_scaling",
                                         "residual_multiplier",  "attention_multiplier"};
constexpr std::string_view kMoeInert[] = {"output_router_logits", "router_aux_loss_coef"};

// The published names, and those that transformers 5 has in memory, of the canonical ones.
constexpr Renaming kPublished[] = {
    {".mlp.gate.weight", ".block_sparse_moe.router.layer.weight"},
    {".mlp.experts.gate_up_proj", ".block_sparse_moe.input_linear.weight"},
    {".mlp.experts.down_proj", ".block_sparse_moe.output_linear.weight"}};
constexpr Renaming kInMemory[] = {{".mlp.gate.weight", ".block_sparse_moe.router.weight"},
                                  {".mlp.experts.", ".block_sparse_moe.experts."}};

constexpr Renaming kModules[] = {{"mlp.experts.", "block_sparse_moe.experts."}};

std::vector<std::string> names_in_files(const std::string& name) {
  return {rename_all(name, kPublished), rename_all(name, kInMemory)};
}

Block read_attention(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  return {kGqa, GqaConfig{.num_heads = keys.num_heads,
                          .num_kv_heads = object.integer("num_key_value_heads", keys.num_heads),
                          .head_dim = head_dim,
                          .scale = static_cast<float>(
                              read_positive_number(object, "attention_multiplier", 1.0)),
                          .qkv_bias = keys.attention_bias,
                          .o_bias = keys.attention_bias,
                          .rope = config.ensure_rope({read_rope(object), head_dim})}};
}

void add_layers(const ConfigObject& object, const DecoderKeys& keys, const Block& mlp,
                ModelConfig& config) {
  config.embedding_scale = read_positive_number(object, "embedding_multiplier", 1.0);
  config.logit_map.scale =
      static_cast<float>(1.0 / read_positive_number(object, "logits_scaling", 1.0));
  const auto scale = static_cast<float>(read_positive_number(object, "residual_multiplier", 1.0));
  const auto add_scaled = [&](std::string_view norm) {
    return Connector(
        kPreNormAdd,
        PreNormAddConfig{.norm = norm, .eps = config.rms_norm_eps, .branch_scale = scale});
  };
  const Block attention = read_attention(object, keys, config);
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       {{add_scaled("input_layernorm.weight"), attention},
                        {add_scaled("post_attention_layernorm.weight"), mlp}});
}

void read_granite(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  add_layers(object, keys,
             Block(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size,
                                             .bias = object.boolean("mlp_bias", false)}),
             config);
}

void read_granitemoe(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  // Softmax over the chosen logits is softmax over all of them, normalised.
  add_layers(object, keys,
             Block(kMoe, MoeConfig{.num_experts = object.integer("num_local_experts", 8),
                                   .top_k = object.integer("num_experts_per_tok", 2),
                                   .expert_width = keys.intermediate_size,
                                   .norm_topk = true}),
             config);
  config.names_in_files = names_in_files;
  config.module_names = kModules;
  config.stores_as_one = true;
}

constexpr DecoderDefaults kDefaults = {.vocab_size = 32000,
                                       .hidden_size = 4096,
                                       .intermediate_size = 11008,
                                       .num_layers = 32,
                                       .num_heads = 32};

}  // namespace

extern const Family kGraniteFamily = {.name = "granite",
                                      .architectures = kArchitectures,
                                      .model_types = kTypes,
                                      .read_keys = kRead,
                                      .inert_keys = {},
                                      .defaults = kDefaults,
                                      .read = read_granite};

extern const Family kGraniteMoeFamily = {.name = "granitemoe",
                                         .architectures = kMoeArchitectures,
                                         .model_types = kMoeTypes,
                                         .read_keys = kMoeRead,
                                         .inert_keys = kMoeInert,
                                         .defaults = kDefaults,
                                         .read = read_granitemoe};

}  // namespace strata::model
