// SPDX-License-Identifier: Apache-2.0
// Gemma 4 text, alone or inside a multimodal checkpoint: windows in most layers, full layers with
// wider heads, norms of queries, keys and values, a number that each layer's state is multiplied
// by, a cap on the logits. In 31B, 12B and 26B-A4B full layers have fewer keys and values, which
// are the same projection; in 26B-A4B there are experts next to the MLP; in E2B and E4B the layers
// of the upper half read keys and values of two layers below, and each layer has an input of its
// own. Sources: HF modeling_gemma4.py, modeling_gemma4_unified.py (12B), and their configurations,
// as all defaults here.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/error.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/per_layer_input.h"
#include "model/connectors/post_norm_add.h"
#include "model/families/gemma_layer.h"
#include "model/families/layer_ropes.h"
#include "model/families/renaming.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Gemma4ForCausalLM"};
constexpr std::string_view kTypes[] = {"gemma4_text"};
constexpr std::string_view kRead[] = {"layer_types",
                                      "sliding_window",
                                      "final_logit_softcapping",
                                      "global_head_dim",
                                      "num_global_key_value_heads",
                                      "attention_k_eq_v",
                                      "per_layer_config",
                                      "hidden_size_per_layer_input",
                                      "vocab_size_per_layer_input",
                                      "num_kv_shared_layers",
                                      "use_double_wide_mlp",
                                      "enable_moe_block",
                                      "num_experts",
                                      "top_k_experts",
                                      "moe_intermediate_size"};
constexpr std::string_view kScale = "layer_scalar";
constexpr std::string_view kInert[] = {"transformers.js_config"};
// "vision" lets tokens of images see one another, and text as without it.
constexpr NeutralKey kNeutral[] = {{"hidden_activation", "\"gelu_pytorch_tanh\""},
                                   {"use_bidirectional_attention", "\"vision\""}};

constexpr std::string_view kWholeArchitectures[] = {"Gemma4ForConditionalGeneration"};
constexpr std::string_view kWholeInert[] = {"vision_config",
                                            "audio_config",
                                            "boi_token_id",
                                            "eoi_token_id",
                                            "image_token_id",
                                            "video_token_id",
                                            "boa_token_id",
                                            "eoa_token_id",
                                            "eoa_token_index",
                                            "audio_token_id",
                                            "vision_soft_tokens_per_image"};
constexpr NameForm kNameForms[] = {{"model.language_model.", "lm_head."}};
constexpr std::string_view kOtherParts[] = {"model.vision_tower.", "model.audio_tower.",
                                            "model.embed_vision.", "model.embed_audio.",
                                            "model.vision_embedder."};
constexpr TextPart make_text_part(std::span<const std::string_view> architectures,
                                  std::string_view model_type) {
  return {.architectures = architectures,
          .inert_keys = kWholeInert,
          .name_forms = kNameForms,
          .module_prefix = "model.language_model.",
          .ignored_prefixes = kOtherParts,
          .model_type = model_type};
}
constexpr TextPart kTextPart = make_text_part(kWholeArchitectures, "gemma4_text");

constexpr std::string_view kUnifiedArchitectures[] = {"Gemma4UnifiedForCausalLM"};
constexpr std::string_view kUnifiedTypes[] = {"gemma4_unified_text"};
constexpr std::string_view kUnifiedWhole[] = {"Gemma4UnifiedForConditionalGeneration"};
constexpr TextPart kUnifiedTextPart = make_text_part(kUnifiedWhole, "gemma4_unified_text");

// What files and adapters call the parts of experts and of the MLP next to them.
constexpr Renaming kExpertNames[] = {{"mlp.shared_experts.", "mlp."},
                                     {"mlp.experts.", "experts."},
                                     {"mlp.gate.weight", "router.proj.weight"}};

std::vector<std::string> names_in_files(const std::string& name) {
  return {rename_all(name, kExpertNames)};
}

// The MLP of every layer, with the experts next to it; `scale` as make_gemma_layer takes it.
Sublayer make_experts(const ConfigObject& object, const DecoderKeys& keys, std::string_view scale,
                      ModelConfig& config) {
  config.names_in_files = names_in_files;
  config.module_names = kExpertNames;
  config.stores_as_one = true;
  return {Connector(kPostNormAdd, PostNormAddConfig{.after = "post_feedforward_layernorm.weight",
                                                    .scale = scale,
                                                    .eps = config.rms_norm_eps}),
          Block(kMoe, MoeConfig{.num_experts = read_size(object, "num_experts"),
                                .top_k = read_size(object, "top_k_experts"),
                                .expert_width = read_size(object, "moe_intermediate_size"),
                                .shared_width = keys.intermediate_size,
                                .norm_topk = true,
                                .norms_paths = true,
                                .eps = config.rms_norm_eps,
                                .activation = ops::Activation::kGeluTanh})};
}

struct HeadSizes {
  int64_t head_dim = 0;
  int64_t num_kv_heads = 0;
};

// The sizes of each layer. Files that transformers saved say them by layer; published ones have the
// full layers' in two keys, of which the number of heads counts only where keys are values.
std::vector<HeadSizes> read_head_sizes(const ConfigObject& object,
                                       const std::vector<bool>& sliding) {
  const HeadSizes usual = {object.integer("head_dim", 256),
                           object.integer("num_key_value_heads", 4)};
  std::vector<HeadSizes> sizes(sliding.size(), usual);
  constexpr std::string_view kByLayer = "per_layer_config";
  const auto by_layer = object.object(kByLayer);
  if (!by_layer) {
    HeadSizes full = {object.integer("global_head_dim", 512), usual.num_kv_heads};
    if (object.boolean("attention_k_eq_v", false)) {
      full.num_kv_heads = object.integer("num_global_key_value_heads", usual.num_kv_heads);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (!sliding[i]) sizes[i] = full;
    }
    return sizes;
  }
  for (const std::string& key : by_layer->keys()) {
    size_t layer = 0;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (fault != std::errc() || end != key.data() + key.size() || layer >= sizes.size()) {
      object.fail(
          fmt::format("{}: got '{}', want a layer from 0 to {}", kByLayer, key, sizes.size() - 1));
    }
    const auto own = by_layer->object(key);
    if (!own) continue;
    for (const std::string& name : own->keys()) {
      if (name == "head_dim" || name == "num_key_value_heads") continue;
      own->fail(fmt::format("{}: key '{}' is not supported", kByLayer, name));
    }
    sizes[layer] = {own->integer("head_dim", usual.head_dim),
                    own->integer("num_key_value_heads", usual.num_kv_heads)};
  }
  return sizes;
}

LayerRopes read_ropes(const ConfigObject& object) {
  LayerRopes usual;
  usual.full = {.type = RopeType::kProportional, .theta = 1e6, .partial_rotary_factor = 0.25};
  const LayerRopes ropes =
      read_layer_ropes(object, usual, {.is_partial = true, .has_proportional = true});
  for (const RopeConfig* rope : {&ropes.full, &ropes.sliding}) {
    if (rope->type != RopeType::kProportional && rope->partial_rotary_factor != 1.0) {
      object.fail("partial_rotary_factor counts with rope_type proportional alone");
    }
  }
  return ropes;
}

// The layer whose keys and values each layer reads, where that is another one: the last layers read
// those of the last layer before them that has the same window, or none.
std::vector<std::optional<int64_t>> read_kv_layers(const ConfigObject& object,
                                                   const std::vector<bool>& sliding) {
  constexpr std::string_view kShared = "num_kv_shared_layers";
  const int64_t num_layers = std::ssize(sliding);
  const int64_t num_shared = object.integer(kShared, 0);
  if (num_shared < 0 || num_shared >= num_layers) {
    object.fail(fmt::format("{}: got {}, want 0 to {}", kShared, num_shared, num_layers - 1));
  }
  std::vector<std::optional<int64_t>> kv_layers(sliding.size());
  std::optional<int64_t> last[2];  // before the shared ones: of full and of sliding layers
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool is_sliding = sliding[static_cast<size_t>(i)];
    if (i < num_layers - num_shared) {
      last[is_sliding] = i;
      continue;
    }
    if (!last[is_sliding]) {
      object.fail(
          fmt::format("{} is {}: layer {} is to read keys and values of a {} layer, and "
                      "none is before layer {}",
                      kShared, num_shared, i, is_sliding ? "sliding_attention" : "full_attention",
                      num_layers - num_shared));
    }
    kv_layers[static_cast<size_t>(i)] = last[is_sliding];
  }
  return kv_layers;
}

// Files may have projections and norms of keys and values in layers that read those of others;
// nothing uses them.
void ignore_unused_kv(int64_t layer, ModelConfig& config) {
  for (const NameForm& form : config.name_forms) {
    const std::string_view model = form.model.substr(std::string_view("model.").size());
    for (const char* name : {"k_proj.", "v_proj.", "k_norm.", "v_norm."}) {
      config.ignored_prefixes.push_back(
          fmt::format("{}layers.{}.self_attn.{}", model, layer, name));
    }
  }
}

// The inputs of each layer of this width, for layers that are made then.
void read_per_layer_inputs(const ConfigObject& object, int64_t width, ModelConfig& config) {
  if (width == 0) return;
  constexpr std::string_view kVocabulary = "vocab_size_per_layer_input";
  config.per_layer_inputs = {.width = read_size(object, "hidden_size_per_layer_input", width),
                             .vocab_size = read_size(object, kVocabulary, 262144)};
  if (config.per_layer_inputs->vocab_size < config.vocab_size) {
    object.fail(fmt::format("{}: got {}, want at least vocab_size, {}", kVocabulary,
                            config.per_layer_inputs->vocab_size, config.vocab_size));
  }
}

void add_per_layer_input(const ModelConfig& config, LayerConfig& layer) {
  layer.push_back(
      {Connector(kPostNormAdd, PostNormAddConfig{.after = "post_per_layer_input_norm.weight",
                                                 .scale = kScale,
                                                 .eps = config.rms_norm_eps}),
       Block(kPerLayerInput, PerLayerInputConfig{.width = config.per_layer_inputs->width})});
}

void read_layers(const ConfigObject& object, const DecoderKeys& keys, int64_t window,
                 ModelConfig& config) {
  set_gemma_defaults(config);
  config.norm_offset = 0.0f;
  if (object.has("final_logit_softcapping")) {
    config.logit_map.cap =
        static_cast<float>(read_positive_number(object, "final_logit_softcapping", 30.0));
  }
  std::vector<bool> sliding = read_layers_of_type(object, "sliding_attention", keys.num_layers,
                                                  [](int64_t i) { return (i + 1) % 6 != 0; });
  sliding.back() = false;  // whatever the file says
  const std::vector<HeadSizes> sizes = read_head_sizes(object, sliding);
  const LayerRopes ropes = read_ropes(object);
  const bool keys_are_values = object.boolean("attention_k_eq_v", false);
  const std::vector<std::optional<int64_t>> kv_layers = read_kv_layers(object, sliding);
  const auto gives_kv = [&](int64_t layer) {
    return std::find(kv_layers.begin(), kv_layers.end(), layer) != kv_layers.end();
  };
  DecoderKeys wide = keys;
  if (object.boolean("use_double_wide_mlp", false)) wide.intermediate_size *= 2;
  const Block mlp = make_gemma_mlp(keys), mlp_of_shared = make_gemma_mlp(wide);
  const bool has_experts = object.boolean("enable_moe_block", false);
  const bool has_inputs = config.per_layer_inputs.has_value();
  const std::string_view scale = has_inputs ? std::string_view() : kScale;
  for (size_t i = 0; i < sliding.size(); ++i) {
    const RopeConfig& rope = sliding[i] ? ropes.sliding : ropes.full;
    const int64_t head_dim = sizes[i].head_dim;
    const GqaConfig attention = {.num_heads = keys.num_heads,
                                 .num_kv_heads = sizes[i].num_kv_heads,
                                 .head_dim = head_dim,
                                 .qkv_bias = keys.attention_bias,
                                 .o_bias = keys.attention_bias,
                                 .keys_are_values = keys_are_values && !sliding[i],
                                 .v_norm = true,
                                 .gives_kv = gives_kv(static_cast<int64_t>(i)),
                                 .kv_layer = kv_layers[i],
                                 .qk_norm = true,
                                 .eps = config.rms_norm_eps,
                                 .window = sliding[i] ? window : 0,
                                 .rope = config.ensure_rope({rope, head_dim})};
    config.layers.push_back(
        make_gemma_layer(config, attention, kv_layers[i] ? mlp_of_shared : mlp, scale));
    if (kv_layers[i]) ignore_unused_kv(static_cast<int64_t>(i), config);
    if (attention.gives_kv) {
      config.shared_kv.push_back({.layer = static_cast<int64_t>(i),
                                  .num_kv_heads = attention.num_kv_heads,
                                  .head_dim = head_dim});
    }
    if (has_experts)
      config.layers.back()[1] = make_experts(object, kv_layers[i] ? wide : keys, scale, config);
    if (has_inputs) add_per_layer_input(config, config.layers.back());
  }
}

void read_gemma4(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr std::string_view kPerLayer = "hidden_size_per_layer_input";
  read_per_layer_inputs(object, object.is_null(kPerLayer) ? 0 : object.integer(kPerLayer, 256),
                        config);
  read_layers(object, keys, read_size(object, "sliding_window", 512), config);
}

void read_gemma4_unified(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  constexpr std::string_view kPerLayer = "hidden_size_per_layer_input";
  read_per_layer_inputs(object, object.is_null(kPerLayer) ? 0 : object.integer(kPerLayer, 0),
                        config);
  read_layers(object, keys, read_size(object, "sliding_window", 1024), config);
}

constexpr DecoderDefaults defaults_for(int64_t max_positions) {
  return {.vocab_size = 262144,
          .hidden_size = 2304,
          .intermediate_size = 9216,
          .num_layers = 30,
          .num_heads = 8,
          .max_position_embeddings = max_positions,
          .tie_word_embeddings = true};
}

}  // namespace

extern const Family kGemma4Family = {.name = "gemma4",
                                     .architectures = kArchitectures,
                                     .model_types = kTypes,
                                     .read_keys = kRead,
                                     .inert_keys = kInert,
                                     .neutral_keys = kNeutral,
                                     .defaults = defaults_for(131072),
                                     .text_part = &kTextPart,
                                     .read = read_gemma4};

extern const Family kGemma4UnifiedFamily = {.name = "gemma4_unified",
                                            .architectures = kUnifiedArchitectures,
                                            .model_types = kUnifiedTypes,
                                            .read_keys = kRead,
                                            .inert_keys = kInert,
                                            .neutral_keys = kNeutral,
                                            .defaults = defaults_for(262144),
                                            .text_part = &kUnifiedTextPart,
                                            .read = read_gemma4_unified};

}  // namespace strata::model
