// SPDX-License-Identifier: Apache-2.0
// gpt-oss: attention with sinks and biases, a window in every other layer, YaRN whose ramp is not
// rounded, and experts with biases, a clamped SwiGLU of its own and a router whose bias is a term
// of its logits. Sources: HF modeling_gpt_oss.py, configuration_gpt_oss.py (all defaults here).
#include <fmt/format.h>

#include <cmath>

#include "model/blocks/attention_config.h"
#include "model/blocks/experts/moe.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"GptOssForCausalLM"};
constexpr std::string_view kTypes[] = {"gpt_oss"};
constexpr std::string_view kRead[] = {
    "layer_types",  "sliding_window", "num_local_experts",   "num_experts",
    "swiglu_limit", "swiglu_alpha",   "num_experts_per_tok", "experts_per_token"};
constexpr std::string_view kInert[] = {"initial_context_length", "router_aux_loss_coef",
                                       "output_router_logits"};
constexpr std::string_view kSliding = "sliding_attention";
constexpr double kTheta = 150000.0;

// The router's parameters, the only ones that go by another name here.
std::vector<std::string> names_in_files(const std::string& name) {
  constexpr std::string_view kGate = ".mlp.gate.";
  const size_t at = name.find(kGate);
  if (at == std::string::npos) return {name};
  return {name.substr(0, at) + ".mlp.router." + name.substr(at + kGate.size())};
}

RopeConfig read_gpt_oss_rope(const ConfigObject& object) {
  if (object.has("rope_scaling") || object.has("rope_parameters")) {
    return read_rope(object, {.theta = kTheta});
  }
  RopeConfig rope = read_rope(object, {.theta = kTheta});
  rope.type = RopeType::kYarn;
  rope.factor = 32.0;
  rope.original_max_position_embeddings = 4096.0;
  rope.truncate = false;
  return rope;
}

float read_positive(const ConfigObject& object, std::string_view key, double fallback) {
  const double value = object.number(key, fallback);
  const auto single = static_cast<float>(value);
  if (!(single > 0.0f) || !std::isfinite(single)) {
    object.fail(fmt::format("{}: got {}, want more than 0", key, value));
  }
  return single;
}

MoeConfig read_moe(const ConfigObject& object, const DecoderKeys& keys) {
  MoeConfig moe;
  moe.num_experts =
      read_size(object, choose_present_key(object, "num_local_experts", "num_experts"), 128);
  moe.top_k =
      read_size(object, choose_present_key(object, "num_experts_per_tok", "experts_per_token"), 4);
  moe.expert_width = keys.intermediate_size;
  moe.norm_topk = true;
  moe.clamp = {.limit = read_positive(object, "swiglu_limit", 7.0),
               .alpha = read_positive(object, "swiglu_alpha", 1.702),
               .up_offset = 1.0f};
  moe.router_bias = true;
  moe.expert_bias = true;
  moe.alternating = true;
  return moe;
}

void read_gpt_oss(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  config.names_in_files = names_in_files;
  config.packs_experts = true;
  const auto quantization = object.object("quantization_config");
  config.has_mxfp4_experts = quantization && quantization->text("quant_method", "") == "mxfp4";
  const int64_t head_dim = object.is_null("head_dim") ? config.hidden_size / keys.num_heads
                                                      : read_size(object, "head_dim", 64);
  const int64_t window =
      object.is_null("sliding_window") ? 0 : read_size(object, "sliding_window", 128);
  const bool has_biases = object.boolean("attention_bias", true);
  GqaConfig attention = {.num_heads = keys.num_heads,
                         .num_kv_heads = read_kv_heads(object, keys, 8),
                         .head_dim = head_dim,
                         .scale = plain_attention_scale(head_dim),
                         .qkv_bias = has_biases,
                         .o_bias = has_biases,
                         .rope = config.ensure_rope({read_gpt_oss_rope(object), head_dim}),
                         .sinks = true};
  const std::vector<bool> sliding = read_layers_of_type(
      object, kSliding, keys.num_layers, [](int64_t layer) { return layer % 2 == 0; });
  add_windowed_layers(object, sliding, window, attention, Block(kMoe, read_moe(object, keys)),
                      config);
}

}  // namespace

extern const Family kGptOssFamily = {.name = "gpt_oss",
                                     .architectures = kArchitectures,
                                     .model_types = kTypes,
                                     .read_keys = kRead,
                                     .inert_keys = kInert,
                                     .defaults = {.vocab_size = 201088,
                                                  .hidden_size = 2880,
                                                  .intermediate_size = 2880,
                                                  .num_layers = 36,
                                                  .num_heads = 64,
                                                  .max_position_embeddings = 131072,
                                                  .rms_norm_eps = 1e-5},
                                     .read = read_gpt_oss};

}  // namespace strata::model
