// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: Llama's layers, with q, k and v in one matrix, and gate and up in another.
// longrope, which the models of 128K and Phi-4-mini have, is not supported.
// Sources: HF modeling_phi3.py, configuration_phi3.py, as all defaults here.
#include <fmt/format.h>

#include "base/error.h"
#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Phi3ForCausalLM"};
constexpr std::string_view kTypes[] = {"phi3"};
constexpr std::string_view kRead[] = {"sliding_window"};
constexpr std::string_view kInert[] = {"resid_pdrop", "embd_pdrop", "auto_map"};
constexpr NeutralKey kNeutral[] = {{"attention_bias", "false"}};

// Older files call longrope su or yarn.
void refuse_longrope(const ConfigObject& object) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const auto settings = object.object(key);
    if (!settings) continue;
    const std::string type = settings->text("rope_type", settings->text("type", "default"));
    if (type == "default") continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {}: rope type '{}' of Phi-3 (longrope) is not supported; its "
                            "models of 4K and Phi-4 have none",
                            object.where(), key, type));
  }
}

void read_phi3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  refuse_longrope(object);
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const RopeConfig rope = read_rope(object, {.is_partial = true});
  const int64_t rotary_dim = rotary_width(rope, head_dim);
  const Block attention(
      kGqa, GqaConfig{.num_heads = keys.num_heads,
                      .num_kv_heads = object.integer("num_key_value_heads", keys.num_heads),
                      .head_dim = head_dim,
                      .scale = plain_attention_scale(head_dim),
                      .fused_qkv = true,
                      .window = read_window_if_named(object),
                      .rope = config.find_or_add_rope({rope, rotary_dim}),
                      .rotary_dim = rotary_dim});
  const Block mlp(kGatedMlp,
                  GatedMlpConfig{.width = keys.intermediate_size, .fused_gate_up = true});
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       make_pre_norm_layer(config, attention, mlp));
  config.stores_as_one = true;
}

}  // namespace

extern const Family kPhi3Family = {.name = "phi3",
                                   .architectures = kArchitectures,
                                   .model_types = kTypes,
                                   .read_keys = kRead,
                                   .inert_keys = kInert,
                                   .neutral_keys = kNeutral,
                                   .defaults = {.vocab_size = 32064,
                                                .hidden_size = 3072,
                                                .intermediate_size = 8192,
                                                .num_layers = 32,
                                                .num_heads = 32,
                                                .max_position_embeddings = 4096,
                                                .rms_norm_eps = 1e-5},
                                   .read = read_phi3};

}  // namespace strata::model
