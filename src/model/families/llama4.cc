// SPDX-License-Identifier: Apache-2.0
// Llama 4 text, alone or inside a multimodal checkpoint: most layers turn pairs of neighbours, norm
// queries and keys without a weight and attend in chunks; every fourth does none of that, attends
// to all and scales its queries by their position. Experts, one a token, read what their weight
// multiplies, next to a shared one. Sources: HF modeling_llama4.py, configuration_llama4.py, as all
// defaults here.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/blocks/attention_config.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Llama4ForCausalLM"};
constexpr std::string_view kTypes[] = {"llama4_text"};
constexpr std::string_view kRead[] = {"intermediate_size_mlp",
                                      "num_local_experts",
                                      "num_experts_per_tok",
                                      "moe_layers",
                                      "interleave_moe_layer_step",
                                      "use_qk_norm",
                                      "no_rope_layers",
                                      "no_rope_layer_interval",
                                      "attention_chunk_size",
                                      "layer_types",
                                      "attn_temperature_tuning",
                                      "attn_scale",
                                      "floor_scale"};
constexpr std::string_view kInert[] = {"router_aux_loss_coef", "output_router_logits",
                                       "cache_implementation", "transformers.js_config"};
constexpr NeutralKey kNeutral[] = {
    {"for_llm_compressor", "false"}, {"router_jitter_noise", "0"}, {"router_jitter_noise", "0E0"}};

constexpr std::string_view kWholeArchitectures[] = {"Llama4ForConditionalGeneration"};
constexpr std::string_view kWholeInert[] = {
    "vision_config",  "boi_token_index", "eoi_token_index", "image_token_index",
    "image_token_id", "boi_token_id",    "eoi_token_id"};
constexpr NameForm kNameForms[] = {{"language_model.model.", "language_model.lm_head."}};
constexpr std::string_view kOtherParts[] = {"vision_model.", "multi_modal_projector."};
constexpr TextPart kTextPart = {.architectures = kWholeArchitectures,
                                .inert_keys = kWholeInert,
                                .name_forms = kNameForms,
                                .module_prefix = "language_model.model.",
                                .ignored_prefixes = kOtherParts,
                                .model_type = "llama4_text"};

// What files and adapters call the parts of the MLPs.
constexpr Renaming kNames[] = {{"mlp.shared_experts.", "feed_forward.shared_expert."},
                               {"mlp.gate.weight", "feed_forward.router.weight"},
                               {"mlp.", "feed_forward."}};

std::vector<std::string> names_in_files(const std::string& name) {
  return {rename_all(name, kNames)};
}

// Which layers turn queries and keys: no_rope_layers says 1 of those that do; without it, or with
// an empty one, all do but every no_rope_layer_interval-th.
std::vector<bool> read_rotating_layers(const ConfigObject& object, int64_t num_layers) {
  const int64_t interval = read_size(object, "no_rope_layer_interval", 4);
  const std::vector<int64_t> listed = object.integers("no_rope_layers");
  if (!listed.empty() && std::ssize(listed) < num_layers) {
    object.fail(fmt::format("no_rope_layers: got {} layers, num_hidden_layers is {}", listed.size(),
                            num_layers));
  }
  std::vector<bool> rotating;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    rotating.push_back(listed.empty() ? (layer + 1) % interval != 0
                                      : listed[static_cast<size_t>(layer)] != 0);
  }
  return rotating;
}

// Which layers have experts: those of moe_layers, else every interleave_moe_layer_step-th.
std::vector<bool> read_expert_layers(const ConfigObject& object, int64_t num_layers) {
  constexpr std::string_view kListed = "moe_layers";
  const int64_t step = read_size(object, "interleave_moe_layer_step", 1);
  std::vector<bool> has_experts;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    has_experts.push_back(!object.has(kListed) && (layer + 1) % step == 0);
  }
  for (const int64_t layer : object.integers(kListed)) {
    if (layer < 0 || layer >= num_layers) {
      object.fail(fmt::format("{}: got {}, num_hidden_layers is {}", kListed, layer, num_layers));
    }
    has_experts[static_cast<size_t>(layer)] = true;
  }
  return has_experts;
}

// The scale of queries in layers that turn nothing; early files say how often it changes instead of
// true.
PositionScale read_position_scale(const ConfigObject& object) {
  constexpr std::string_view kTuning = "attn_temperature_tuning";
  const std::string tuning = object.has(kTuning) ? object.json(kTuning) : "true";
  const bool is_number = !tuning.empty() && tuning.find_first_not_of("0123456789") == tuning.npos;
  const bool is_on = is_number ? object.integer(kTuning) != 0 : object.boolean(kTuning, true);
  const double beta = object.number("attn_scale", 0.1);
  if (!(beta >= 0.0 && beta < 1e6)) {
    object.fail(fmt::format("attn_scale: got {}, want at least 0", beta));
  }
  const double length = read_positive_number(object, "floor_scale", 8192.0);
  if (!is_on || beta == 0.0) return {};
  return {.beta = beta, .length = length, .offset = 1.0};
}

MoeConfig read_moe(const ConfigObject& object, const DecoderKeys& keys) {
  return {.num_experts = read_size(object, "num_local_experts", 16),
          .top_k = read_size(object, "num_experts_per_tok", 1),
          .expert_width = keys.intermediate_size,
          .shared_width = keys.intermediate_size,
          .router = RouterKind::kLogit,
          .weighs_inputs = true,
          .swapped = true};
}

// A layer that turns queries and keys, and one that does not.
struct AttentionKinds {
  GqaConfig rotating, still;
};

AttentionKinds read_attention(const ConfigObject& object, const DecoderKeys& keys,
                              ModelConfig& config) {
  const int64_t head_dim = object.is_null("head_dim") ? config.hidden_size / keys.num_heads
                                                      : read_size(object, "head_dim", 128);
  const RopeConfig rope = read_rope(object, {.theta = 500000.0});
  AttentionKinds kinds;
  kinds.rotating = {.num_heads = keys.num_heads,
                    .num_kv_heads = read_kv_heads(object, keys, 8),
                    .head_dim = head_dim,
                    .scale = plain_attention_scale(head_dim),
                    .qkv_bias = keys.attention_bias,
                    .o_bias = keys.attention_bias,
                    .rope = config.ensure_rope({rope, head_dim}),
                    .rope_interleave = true};
  kinds.still = kinds.rotating;
  kinds.still.rope = kNoRope;
  kinds.still.rope_interleave = false;
  kinds.rotating.plain_qk_norm = object.boolean("use_qk_norm", true);
  kinds.rotating.eps = config.rms_norm_eps;
  if (const PositionScale scale = read_position_scale(object); scale.beta != 0.0) {
    // A table of pairs that do not turn has the scale alone.
    const RopeConfig none = {.type = RopeType::kProportional, .partial_rotary_factor = 0.0};
    kinds.still.query_rope = config.ensure_rope({none, head_dim, scale});
  }
  return kinds;
}

void read_llama4(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr std::string_view kChunk = "attention_chunk_size";
  config.names_in_files = names_in_files;
  config.module_names = kNames;
  config.packs_experts = true;
  const AttentionKinds kinds = read_attention(object, keys, config);
  const int64_t chunk = object.is_null(kChunk) ? 0 : read_size(object, kChunk, 8192);
  const std::vector<bool> rotating = read_rotating_layers(object, keys.num_layers);
  const std::vector<bool> in_chunks = read_layers_of_type(
      object, "chunked_attention", keys.num_layers,
      [&](int64_t layer) { return chunk > 0 && rotating[static_cast<size_t>(layer)]; });
  const std::vector<bool> has_experts = read_expert_layers(object, keys.num_layers);
  const Block experts(kMoe, read_moe(object, keys));
  const Block mlp(kGatedMlp,
                  GatedMlpConfig{.width = read_size(object, "intermediate_size_mlp", 16384)});
  for (size_t layer = 0; layer < rotating.size(); ++layer) {
    if (in_chunks[layer] && chunk == 0) {
      object.fail(fmt::format("layer_types: chunked_attention without {}", kChunk));
    }
    GqaConfig attention = rotating[layer] ? kinds.rotating : kinds.still;
    attention.window = in_chunks[layer] ? chunk : 0;
    attention.in_chunks = in_chunks[layer];
    config.layers.push_back(
        make_pre_norm_layer(config, Block(kGqa, attention), has_experts[layer] ? experts : mlp));
  }
}

}  // namespace

extern const Family kLlama4Family = {.name = "llama4",
                                     .architectures = kArchitectures,
                                     .model_types = kTypes,
                                     .read_keys = kRead,
                                     .inert_keys = kInert,
                                     .neutral_keys = kNeutral,
                                     .defaults = {.vocab_size = 202048,
                                                  .hidden_size = 5120,
                                                  .intermediate_size = 8192,
                                                  .num_layers = 48,
                                                  .num_heads = 40,
                                                  .max_position_embeddings = 131072,
                                                  .rms_norm_eps = 1e-5},
                                     .text_part = &kTextPart,
                                     .read = read_llama4};

}  // namespace strata::model
