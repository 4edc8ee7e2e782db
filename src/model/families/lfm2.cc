// SPDX-License-Identifier: Apache-2.0
// LFM2 and LFM2.5, dense: gated short convolutions, and attention with normed queries and keys in
// some layers; an MLP whose width in the file is not yet the one it has. Sources: HF
// modeling_lfm2.py, configuration_lfm2.py (all defaults here).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/short_conv.h"
#include "model/connectors/pre_norm_add.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Lfm2ForCausalLM"};
constexpr std::string_view kTypes[] = {"lfm2"};
constexpr std::string_view kRead[] = {"norm_eps",
                                      "tie_embedding",
                                      "block_ff_dim",
                                      "block_auto_adjust_ff_dim",
                                      "block_ffn_dim_multiplier",
                                      "block_multiple_of",
                                      "conv_bias",
                                      "conv_L_cache",
                                      "full_attn_idxs",
                                      "layer_types"};
constexpr std::string_view kInert[] = {"block_dim",
                                       "block_mlp_init_scale",
                                       "block_norm_eps",
                                       "block_out_init_scale",
                                       "block_use_swiglu",
                                       "block_use_xavier_init",
                                       "conv_dim",
                                       "conv_dim_out",
                                       "conv_use_xavier_init",
                                       "num_heads",
                                       "theta",
                                       "use_pos_enc"};

// What files and adapters call the parts of the blocks.
constexpr Renaming kNames[] = {{"self_attn.o_proj", "self_attn.out_proj"},
                               {"self_attn.q_norm", "self_attn.q_layernorm"},
                               {"self_attn.k_norm", "self_attn.k_layernorm"},
                               {"mlp.gate_proj", "feed_forward.w1"},
                               {"mlp.up_proj", "feed_forward.w3"},
                               {"mlp.down_proj", "feed_forward.w2"},
                               {"model.norm.weight", "model.embedding_norm.weight"}};

std::vector<std::string> names_in_files(const std::string& name) {
  return {rename_all(name, kNames)};
}

// The MLP is as wide as the file says, or with block_auto_adjust_ff_dim two thirds of that, times a
// factor and up to a multiple unless the factor is null.
int64_t read_mlp_width(const ConfigObject& object, const DecoderKeys& keys) {
  constexpr std::string_view kFactor = "block_ffn_dim_multiplier";
  constexpr double kLargest = 1 << 30;
  const int64_t width =
      object.has("block_ff_dim") ? read_size(object, "block_ff_dim") : keys.intermediate_size;
  if (!object.boolean("block_auto_adjust_ff_dim", true)) return width;
  const auto two_thirds = static_cast<double>(2 * width / 3);
  const double scaled = object.is_null(kFactor)
                            ? two_thirds
                            : read_positive_number(object, kFactor, 1.0) * two_thirds;
  if (!(scaled >= 1.0 && scaled <= kLargest)) {
    object.fail(
        fmt::format("block_auto_adjust_ff_dim makes {} of an MLP {} wide with {} {}, want 1 "
                    "to {}",
                    scaled, width, kFactor, object.json(kFactor), kLargest));
  }
  const int64_t multiple =
      object.is_null(kFactor) ? 1 : read_size(object, "block_multiple_of", 256);
  return (static_cast<int64_t>(scaled) + multiple - 1) / multiple * multiple;
}

// Which layers are convolutions: by layer_types, else all but those of full_attn_idxs, else none.
std::vector<bool> read_conv_layers(const ConfigObject& object, int64_t num_layers) {
  constexpr std::string_view kIndices = "full_attn_idxs";
  const std::vector<int64_t> attention =
      object.has(kIndices) ? object.integers(kIndices) : std::vector<int64_t>();
  for (const int64_t layer : attention) {
    if (layer >= 0 && layer < num_layers) continue;
    object.fail(fmt::format("{}: got {}, num_hidden_layers is {}", kIndices, layer, num_layers));
  }
  return read_layers_of_type(object, "conv", num_layers, [&](int64_t layer) {
    return object.has(kIndices) &&
           std::find(attention.begin(), attention.end(), layer) == attention.end();
  });
}

void read_lfm2(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  config.rms_norm_eps = object.number("norm_eps", 1e-5);
  config.tie_word_embeddings = object.boolean("tie_embedding", config.tie_word_embeddings);
  config.names_in_files = names_in_files;
  config.module_names = kNames;
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const RopeConfig rope = read_rope(object, {.theta = 1e6});
  const Block attention(kGqa, GqaConfig{.num_heads = keys.num_heads,
                                        .num_kv_heads = object.integer("num_key_value_heads", 8),
                                        .head_dim = head_dim,
                                        .scale = plain_attention_scale(head_dim),
                                        .qk_norm = true,
                                        .eps = config.rms_norm_eps,
                                        .rope = config.ensure_rope({rope, head_dim})});
  const Block conv(kShortConv, ShortConvConfig{.width = config.hidden_size,
                                               .taps = read_size(object, "conv_L_cache", 3),
                                               .bias = object.boolean("conv_bias", false)});
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = read_mlp_width(object, keys)});
  const auto norm = [&](std::string_view name) {
    return Connector(kPreNormAdd, PreNormAddConfig{.norm = name, .eps = config.rms_norm_eps});
  };
  for (const bool is_conv : read_conv_layers(object, keys.num_layers)) {
    config.layers.push_back({{norm("operator_norm.weight"), is_conv ? conv : attention},
                             {norm("ffn_norm.weight"), mlp}});
  }
}

}  // namespace

extern const Family kLfm2Family = {.name = "lfm2",
                                   .architectures = kArchitectures,
                                   .model_types = kTypes,
                                   .read_keys = kRead,
                                   .inert_keys = kInert,
                                   .defaults = {.vocab_size = 65536,
                                                .hidden_size = 2560,
                                                .intermediate_size = 12288,
                                                .num_layers = 32,
                                                .num_heads = 32,
                                                .max_position_embeddings = 128000,
                                                .tie_word_embeddings = true},
                                   .read = read_lfm2};

}  // namespace strata::model
