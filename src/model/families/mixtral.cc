// SPDX-License-Identifier: Apache-2.0
// Mixtral: Mistral's attention and experts in every layer. Sources: HF modeling_mixtral.py,
// configuration_mixtral.py, as all defaults here; conversion_mapping.py for names in files.
#include <fmt/format.h>

#include "base/error.h"
#include "model/blocks/attention_config.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"MixtralForCausalLM"};
constexpr std::string_view kTypes[] = {"mixtral"};
constexpr std::string_view kRead[] = {"sliding_window", "num_local_experts", "num_experts",
                                      "num_experts_per_tok", "router_jitter_noise"};
constexpr std::string_view kInert[] = {"transformers.js_config", "output_router_logits",
                                       "router_aux_loss_coef"};
constexpr NeutralKey kNeutral[] = {{"attention_bias", "false"}, {"mlp_bias", "false"}};

// The published names of the canonical ones.
constexpr Renaming kPublished[] = {{".mlp.gate.", ".block_sparse_moe.gate."},
                                   {".mlp.experts.", ".block_sparse_moe.experts."},
                                   {".gate_proj.", ".w1."},
                                   {".up_proj.", ".w3."},
                                   {".down_proj.", ".w2."}};

constexpr std::string_view kOlderExperts = ".block_sparse_moe.experts.";
constexpr Renaming kOlder[] = {{kOlderExperts, ".mlp.experts."},
                               {".w1", ".gate_proj"},
                               {".w3", ".up_proj"},
                               {".w2", ".down_proj"}};

std::string module_of_older_name(const std::string& path) {
  return path.find(kOlderExperts) == std::string::npos ? path : rename_all(path, kOlder);
}

std::vector<std::string> names_in_files(const std::string& name) {
  return {rename_all(name, kPublished)};
}

// It is added to what routers read while training.
void refuse_jitter(const ConfigObject& object) {
  if (object.number("router_jitter_noise", 0.0) == 0.0) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: router_jitter_noise: got {}, only 0 is supported", object.where(),
                          object.json("router_jitter_noise")));
}

void read_mixtral(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr double kTheta = 1e6;
  refuse_jitter(object);
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const RopeConfig rope = read_rope(object, {.theta = kTheta});
  const Block attention(kGqa, GqaConfig{.num_heads = keys.num_heads,
                                        .num_kv_heads = read_kv_heads(object, keys, 8),
                                        .head_dim = head_dim,
                                        .scale = plain_attention_scale(head_dim),
                                        .window = read_named_window(object),
                                        .rope = config.ensure_rope({rope, head_dim})});
  // Weights of the chosen experts are their softmax, normalised to sum to one.
  const Block experts(
      kMoe, MoeConfig{.num_experts = object.integer(
                          choose_present_key(object, "num_local_experts", "num_experts"), 8),
                      .top_k = object.integer("num_experts_per_tok", 2),
                      .expert_width = keys.intermediate_size,
                      .norm_topk = true});
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       make_pre_norm_layer(config, attention, experts));
  config.names_in_files = names_in_files;
  config.module_of_older_name = module_of_older_name;
}

}  // namespace

extern const Family kMixtralFamily = {.name = "mixtral",
                                      .architectures = kArchitectures,
                                      .model_types = kTypes,
                                      .read_keys = kRead,
                                      .inert_keys = kInert,
                                      .neutral_keys = kNeutral,
                                      .defaults = {.vocab_size = 32000,
                                                   .hidden_size = 4096,
                                                   .intermediate_size = 14336,
                                                   .num_layers = 32,
                                                   .num_heads = 32,
                                                   .max_position_embeddings = 131072,
                                                   .rms_norm_eps = 1e-5},
                                      .read = read_mixtral};

}  // namespace strata::model
