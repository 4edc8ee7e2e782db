// SPDX-License-Identifier: Apache-2.0
// Gemma 3 text, alone or inside a multimodal checkpoint: windows in five of six layers with a
// rotary table of their own, norms of 1 + w before and after each branch, normed queries and keys,
// a scaled embedding, the tanh form of GELU. Source: HF modeling_gemma3.py and
// configuration_gemma3.py, as all defaults here.
#include <cmath>

#include "model/families/gemma_layer.h"
#include "model/families/layer_ropes.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Gemma3ForCausalLM"};
constexpr std::string_view kTypes[] = {"gemma3_text"};
constexpr std::string_view kRead[] = {"layer_types", "sliding_window", "sliding_window_pattern",
                                      "query_pre_attn_scalar", "rope_local_base_freq"};
constexpr std::string_view kInert[] = {"transformers.js_config", "_sliding_window_pattern",
                                       "cache_implementation"};
constexpr NeutralKey kNeutral[] = {{"hidden_activation", "\"gelu_pytorch_tanh\""},
                                   {"hidden_activation", "\"gelu_python_tanh\""},
                                   {"hidden_act", "\"gelu_pytorch_tanh\""},
                                   {"use_bidirectional_attention", "false"},
                                   {"attn_logit_softcapping", "null"},
                                   {"final_logit_softcapping", "null"}};
constexpr double kGlobalTheta = 1e6;
constexpr double kLocalTheta = 1e4;

constexpr std::string_view kWholeArchitectures[] = {"Gemma3ForConditionalGeneration"};
constexpr std::string_view kWholeInert[] = {
    "vision_config",  "boi_token_index",     "eoi_token_index", "image_token_index",
    "image_token_id", "mm_tokens_per_image", "boi_token_id",    "eoi_token_id"};
// What the hub has, and what transformers 5 can write.
constexpr NameForm kNameForms[] = {{"language_model.model.", "language_model.lm_head."},
                                   {"language_model.model.", "lm_head."},
                                   {"model.language_model.", "lm_head."}};
constexpr std::string_view kVision[] = {"vision_tower.", "multi_modal_projector."};
constexpr TextPart kTextPart = {.architectures = kWholeArchitectures,
                                .inert_keys = kWholeInert,
                                .name_forms = kNameForms,
                                .module_prefix = "model.language_model.",
                                .ignored_prefixes = kVision,
                                .model_type = "gemma3_text"};

// An Error where the older form, which the file has too, says another RoPE.
void check_forms_agree(const ConfigObject& object, const LayerRopes& old_form,
                       const LayerRopes& ropes) {
  const bool agree = (!object.has("rope_theta") || old_form.full.theta == ropes.full.theta) &&
                     (!object.has("rope_local_base_freq") || old_form.sliding == ropes.sliding) &&
                     (!object.object("rope_scaling") || old_form.full == ropes.full);
  if (!agree) object.fail("rope_parameters and the older rope settings disagree");
}

LayerRopes read_ropes(const ConfigObject& object) {
  LayerRopes old_form;
  old_form.full.theta = object.number("rope_theta", kGlobalTheta);
  old_form.sliding.theta = object.number("rope_local_base_freq", kLocalTheta);
  old_form.full = read_older_full_rope(object, old_form.full.theta);
  const LayerRopes ropes = read_layer_ropes(object, old_form);
  if (object.object("rope_parameters")) check_forms_agree(object, old_form, ropes);
  return ropes;
}

void read_gemma3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t window = read_size(object, "sliding_window", 4096);
  const int64_t pattern = read_size(object, "sliding_window_pattern", 6);
  const int64_t head_dim = object.integer("head_dim", 256);
  const double scalar = read_positive_number(object, "query_pre_attn_scalar", 256.0);
  static_cast<void>(read_partial_rotary(object, {}));  // an Error where it is not 1
  const LayerRopes ropes = read_ropes(object);
  set_gemma_defaults(config);
  GqaConfig attention = {.num_heads = keys.num_heads,
                         .num_kv_heads = object.integer("num_key_value_heads", 4),
                         .head_dim = head_dim,
                         .scale = static_cast<float>(1.0 / std::sqrt(scalar)),
                         .qkv_bias = keys.attention_bias,
                         .o_bias = keys.attention_bias,
                         .qk_norm = true,
                         .eps = config.rms_norm_eps,
                         .norm_offset = 1.0f};
  const Block mlp = make_gemma_mlp(keys);
  const int global = config.ensure_rope({ropes.full, head_dim});
  const int local = config.ensure_rope({ropes.sliding, head_dim});
  for (const bool has_window :
       read_layers_of_type(object, "sliding_attention", keys.num_layers,
                           [&](int64_t layer) { return (layer + 1) % pattern != 0; })) {
    attention.window = has_window ? window : 0;
    attention.rope = has_window ? local : global;
    config.layers.push_back(make_gemma_layer(config, attention, mlp));
  }
}

}  // namespace

extern const Family kGemma3Family = {.name = "gemma3",
                                     .architectures = kArchitectures,
                                     .model_types = kTypes,
                                     .read_keys = kRead,
                                     .inert_keys = kInert,
                                     .neutral_keys = kNeutral,
                                     .defaults = {.vocab_size = 262208,
                                                  .hidden_size = 2304,
                                                  .intermediate_size = 9216,
                                                  .num_layers = 26,
                                                  .num_heads = 8,
                                                  .max_position_embeddings = 131072,
                                                  .tie_word_embeddings = true},
                                     .text_part = &kTextPart,
                                     .read = read_gemma3};

}  // namespace strata::model
