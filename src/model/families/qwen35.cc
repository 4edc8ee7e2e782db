// SPDX-License-Identifier: Apache-2.0
// Qwen3.5, 3.6 and 3.8, dense and with experts, alone or inside a multimodal checkpoint: gated
// delta nets, and in every fourth layer attention with an output gate; norms of 1 + w; and a layer
// of multi-token prediction (mtp.), which takes part where it is asked for. Qwen3-Next has the same
// layers, the delta nets' projections in two matrices, and experts as Qwen3-MoE.
// Sources: HF modeling_qwen3_5.py, configuration_qwen3_5.py, modeling_qwen3_5_moe.py,
// configuration_qwen3_5_moe.py, modeling_qwen3_next.py, configuration_qwen3_next.py, as all
// defaults here; vLLM qwen3_5_mtp.py, since transformers leaves out that layer.
#include <fmt/format.h>

#include "model/blocks/attention_config.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_delta_net.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/blocks/mtp_joined_input.h"
#include "model/connectors/replace.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Qwen3_5ForCausalLM"};
constexpr std::string_view kMoeArchitectures[] = {"Qwen3_5MoeForCausalLM"};
constexpr std::string_view kTypes[] = {"qwen3_5_text", "qwen3_5"};
constexpr std::string_view kMoeTypes[] = {"qwen3_5_moe_text", "qwen3_5_moe"};
// Those of experts come last.
constexpr std::string_view kMoeRead[] = {"mtp_num_hidden_layers",
                                         "layer_types",
                                         "full_attention_interval",
                                         "linear_conv_kernel_dim",
                                         "linear_key_head_dim",
                                         "linear_value_head_dim",
                                         "linear_num_key_heads",
                                         "linear_num_value_heads",
                                         "moe_intermediate_size",
                                         "shared_expert_intermediate_size",
                                         "num_experts",
                                         "num_experts_per_tok"};
constexpr std::span<const std::string_view> kRead = std::span(kMoeRead).first<8>();
constexpr std::string_view kInert[] = {"transformers.js_config", "output_router_logits",
                                       "router_aux_loss_coef", "_experts_implementation"};
constexpr NeutralKey kNeutral[] = {{"mtp_use_dedicated_embeddings", "false"},
                                   {"attn_output_gate", "true"},
                                   {"output_gate_type", "\"swish\""},
                                   {"mamba_ssm_dtype", "\"float32\""},
                                   {"mlp_only_layers", "[]"},
                                   {"decoder_sparse_step", "1"},
                                   {"norm_topk_prob", "true"}};

constexpr std::string_view kWholeArchitectures[] = {"Qwen3_5ForConditionalGeneration"};
constexpr std::string_view kWholeMoeArchitectures[] = {"Qwen3_5MoeForConditionalGeneration"};
constexpr std::string_view kWholeInert[] = {"vision_config",         "language_model_only",
                                            "image_token_id",        "video_token_id",
                                            "vision_start_token_id", "vision_end_token_id"};
constexpr NameForm kNameForms[] = {{"model.language_model.", "lm_head."}};
constexpr std::string_view kIgnored[] = {"visual.", "mtp."};
constexpr std::string_view kModulePrefix = "model.language_model.";
constexpr TextPart kTextPart = {.architectures = kWholeArchitectures,
                                .inert_keys = kWholeInert,
                                .name_forms = kNameForms,
                                .module_prefix = kModulePrefix,
                                .ignored_prefixes = kIgnored,
                                .model_type = "qwen3_5_text"};
constexpr TextPart kMoeTextPart = {.architectures = kWholeMoeArchitectures,
                                   .inert_keys = kWholeInert,
                                   .name_forms = kNameForms,
                                   .module_prefix = kModulePrefix,
                                   .ignored_prefixes = kIgnored,
                                   .model_type = "qwen3_5_moe_text"};

constexpr std::string_view kNextArchitectures[] = {"Qwen3NextForCausalLM"};
constexpr std::string_view kNextTypes[] = {"qwen3_next"};
constexpr std::string_view kNextRead[] = {"mtp_num_hidden_layers",
                                          "num_nextn_predict_layers",
                                          "layer_types",
                                          "full_attention_interval",
                                          "linear_conv_kernel_dim",
                                          "linear_key_head_dim",
                                          "linear_value_head_dim",
                                          "linear_num_key_heads",
                                          "linear_num_value_heads",
                                          "moe_intermediate_size",
                                          "shared_expert_intermediate_size",
                                          "num_experts",
                                          "num_experts_per_tok",
                                          "norm_topk_prob",
                                          "decoder_sparse_step",
                                          "mlp_only_layers"};
constexpr std::string_view kNextInert[] = {"output_router_logits", "router_aux_loss_coef",
                                           "_experts_implementation"};
constexpr std::string_view kNextIgnored[] = {"mtp."};

// Whether each layer is a delta net: by layer_types, else all but every full_attention_interval-th.
std::vector<bool> read_delta_layers(const ConfigObject& object, int64_t num_layers) {
  const int64_t interval =
      object.has("layer_types") ? 1 : read_size(object, "full_attention_interval", 4);
  return read_layers_of_type(object, "linear_attention", num_layers,
                             [&](int64_t layer) { return (layer + 1) % interval != 0; });
}

GatedDeltaNetConfig read_delta_net(const ConfigObject& object, const ModelConfig& config) {
  return {.num_key_heads = read_size(object, "linear_num_key_heads", 16),
          .num_value_heads = read_size(object, "linear_num_value_heads", 32),
          .key_dim = read_size(object, "linear_key_head_dim", 128),
          .value_dim = read_size(object, "linear_value_head_dim", 128),
          .conv_width = read_size(object, "linear_conv_kernel_dim", 4),
          .eps = config.rms_norm_eps};
}

// Which rotary table the attention's is stays open.
std::pair<GqaConfig, RopeConfig> read_attention_and_rope(const ConfigObject& object,
                                                         const DecoderKeys& keys, int64_t kv_heads,
                                                         const ModelConfig& config) {
  const int64_t head_dim = read_size(object, "head_dim", 256);
  const RopeConfig rope =
      read_rope(object, {.partial_rotary_factor = 0.25, .is_partial = true, .has_sections = true});
  const int64_t rotary_dim = rotary_width(rope, head_dim);
  const GqaConfig attention = {.num_heads = keys.num_heads,
                               .num_kv_heads = object.integer("num_key_value_heads", kv_heads),
                               .head_dim = head_dim,
                               .scale = plain_attention_scale(head_dim),
                               .qkv_bias = keys.attention_bias,
                               .o_bias = keys.attention_bias,
                               .qk_norm = true,
                               .eps = config.rms_norm_eps,
                               .norm_offset = 1.0f,
                               .rotary_dim = rotary_dim,
                               .output_gate = true};
  return {attention, rope};
}

// What files call a tensor of the layer of multi-token prediction: of what it is made of the whole
// layer of the model has a number.
std::string mtp_tensor_name(const std::string& name) {
  const bool is_outside =
      name.starts_with("fc.") || name.starts_with("pre_fc_norm_") || name == "norm.weight";
  return (is_outside ? "mtp." : "mtp.layers.0.") + name;
}

// A layer of the model with full attention, behind the matrix that joins its inputs. Chains of
// several are not known.
void set_mtp_layer(const ConfigObject& object, const Block& attention, const Block& mlp,
                   ModelConfig& config) {
  const std::string_view key =
      object.has("mtp_num_hidden_layers") ? "mtp_num_hidden_layers" : "num_nextn_predict_layers";
  const int64_t count = object.integer(key, 1);
  if (count < 0) object.fail(fmt::format("{}: got {}, want 0 or more", key, count));
  if (count != 1) return;
  config.mtp_layer = make_pre_norm_layer(config, attention, mlp);
  config.mtp_layer->insert(
      config.mtp_layer->begin(),
      {Connector(kReplace, ReplaceConfig()),
       Block(kMtpJoinedInput,
             MtpJoinedInputConfig{.eps = config.rms_norm_eps, .norm_offset = config.norm_offset})});
  config.mtp_reads_hidden = true;
  config.mtp_tensor_name = mtp_tensor_name;
}

// Appends the layers, and adds the rotary table that they name.
void add_layers(const ConfigObject& object, const DecoderKeys& keys, int64_t kv_heads,
                const Block& mlp, ModelConfig& config) {
  auto [gqa, rope] = read_attention_and_rope(object, keys, kv_heads, config);
  gqa.rope = config.ensure_rope({rope, gqa.rotary_dim});
  const Block attention(kGqa, gqa);
  const Block delta_net(kGatedDeltaNet, read_delta_net(object, config));
  for (const bool is_delta : read_delta_layers(object, keys.num_layers)) {
    config.layers.push_back(make_pre_norm_layer(config, is_delta ? delta_net : attention, mlp));
  }
  set_mtp_layer(object, attention, mlp, config);
}

void read_qwen3_next(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  config.norm_offset = 1.0f;
  config.ignored_prefixes.assign(std::begin(kNextIgnored), std::end(kNextIgnored));
  auto [gqa, rope] = read_attention_and_rope(object, keys, 2, config);
  gqa.rope = config.ensure_rope({rope, gqa.rotary_dim});
  GatedDeltaNetConfig net = read_delta_net(object, config);
  net.fused_by_key_head = true;
  const Block attention(kGqa, gqa), delta_net(kGatedDeltaNet, net);
  const MoeConfig moe = {.num_experts = object.integer("num_experts", 512),
                         .top_k = object.integer("num_experts_per_tok", 10),
                         .expert_width = object.integer("moe_intermediate_size", 512),
                         .shared_width = read_size(object, "shared_expert_intermediate_size", 512),
                         .shared_gate = true,
                         .norm_topk = object.boolean("norm_topk_prob", true)};
  const Block experts(kMoe, moe);
  const Block dense(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size});
  const std::vector<bool> is_delta = read_delta_layers(object, keys.num_layers);
  const std::vector<bool> is_sparse = read_sparse_layers(object, keys, moe.num_experts);
  for (size_t layer = 0; layer < is_delta.size(); ++layer) {
    config.layers.push_back(make_pre_norm_layer(config, is_delta[layer] ? delta_net : attention,
                                                is_sparse[layer] ? experts : dense));
  }
  // By its own place, the first, as vLLM counts it.
  set_mtp_layer(object, attention, is_sparse.front() ? experts : dense, config);
}

// A text model that was saved from a multimodal checkpoint keeps that one's names.
void accept_multimodal_names(ModelConfig& config) {
  if (config.name_forms.front().model != NameForm().model) return;
  config.name_forms.emplace_back(kNameForms[0]);
  config.ignored_prefixes.assign(std::begin(kIgnored), std::end(kIgnored));
}

void read_qwen35_dense(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  config.norm_offset = 1.0f;
  const Block mlp(kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size});
  add_layers(object, keys, 4, mlp, config);
  accept_multimodal_names(config);
}

void read_qwen35_moe(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  config.norm_offset = 1.0f;
  const MoeConfig moe = {.num_experts = object.integer("num_experts", 256),
                         .top_k = object.integer("num_experts_per_tok", 8),
                         .expert_width = object.integer("moe_intermediate_size", 512),
                         .shared_width = read_size(object, "shared_expert_intermediate_size", 512),
                         .shared_gate = true,
                         .norm_topk = true};
  add_layers(object, keys, 2, Block(kMoe, moe), config);
  accept_multimodal_names(config);
}

}  // namespace

extern const Family kQwen35Family = {.name = "qwen3_5",
                                     .architectures = kArchitectures,
                                     .model_types = kTypes,
                                     .read_keys = kRead,
                                     .inert_keys = kInert,
                                     .neutral_keys = kNeutral,
                                     .defaults = {.vocab_size = 248320,
                                                  .hidden_size = 4096,
                                                  .intermediate_size = 12288,
                                                  .num_layers = 32,
                                                  .num_heads = 16,
                                                  .max_position_embeddings = 32768},
                                     .text_part = &kTextPart,
                                     .read = read_qwen35_dense};

extern const Family kQwen35MoeFamily = {.name = "qwen3_5_moe",
                                        .architectures = kMoeArchitectures,
                                        .model_types = kMoeTypes,
                                        .read_keys = kMoeRead,
                                        .inert_keys = kInert,
                                        .neutral_keys = kNeutral,
                                        .defaults = {.vocab_size = 248320,
                                                     .hidden_size = 2048,
                                                     .intermediate_size = 1,  // it has none
                                                     .num_layers = 40,
                                                     .num_heads = 16,
                                                     .max_position_embeddings = 32768},
                                        .text_part = &kMoeTextPart,
                                        .read = read_qwen35_moe};

extern const Family kQwen3NextFamily = {.name = "qwen3_next",
                                        .architectures = kNextArchitectures,
                                        .model_types = kNextTypes,
                                        .read_keys = kNextRead,
                                        .inert_keys = kNextInert,
                                        .defaults = {.vocab_size = 151936,
                                                     .hidden_size = 2048,
                                                     .intermediate_size = 5632,
                                                     .num_layers = 48,
                                                     .num_heads = 16,
                                                     .max_position_embeddings = 32768},
                                        .read = read_qwen3_next};

}  // namespace strata::model
