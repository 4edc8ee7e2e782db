// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf/names.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace strata {
namespace {

struct NameRow {
  std::string_view stored;
  std::string_view name;
};

constexpr NameRow kOutside[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}};

// Below "blk.N." and "model.layers.N.", with .weight or .bias behind. Of equal names the first that
// the architecture allows.
constexpr NameRow kGemma3[] = {{"ffn_norm", "pre_feedforward_layernorm"},
                               {"post_attention_norm", "post_attention_layernorm"},
                               {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr NameRow kGemma4[] = {{"ffn_norm", "pre_feedforward_layernorm"},
                               {"post_attention_norm", "post_attention_layernorm"},
                               {"post_ffw_norm", "post_feedforward_layernorm"},
                               {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                               {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                               {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                               {"ffn_gate_inp", "router.proj"},
                               {"inp_gate", "per_layer_input_gate"},
                               {"proj", "per_layer_projection"},
                               {"post_norm", "post_per_layer_input_norm"}};
constexpr NameRow kLlama4[] = {{"ffn_gate_inp", "feed_forward.router"},
                               {"ffn_gate", "feed_forward.gate_proj"},
                               {"ffn_up", "feed_forward.up_proj"},
                               {"ffn_down", "feed_forward.down_proj"},
                               {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
                               {"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
                               {"ffn_down_shexp", "feed_forward.shared_expert.down_proj"}};
constexpr NameRow kGptOss[] = {{"post_attention_norm", "post_attention_layernorm"},
                               {"ffn_gate_inp", "mlp.router"}};
constexpr NameRow kHybrid[] = {{"post_attention_norm", "post_attention_layernorm"},
                               {"attn_qkv", "linear_attn.in_proj_qkv"},
                               {"attn_gate", "linear_attn.in_proj_z"},
                               {"ssm_alpha", "linear_attn.in_proj_a"},
                               {"ssm_beta", "linear_attn.in_proj_b"},
                               {"ssm_conv1d", "linear_attn.conv1d"},
                               {"ssm_norm", "linear_attn.norm"},
                               {"ssm_out", "linear_attn.out_proj"},
                               {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                               {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                               {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                               {"ffn_down_shexp", "mlp.shared_expert.down_proj"}};
constexpr NameRow kLatent[] = {{"attn_q_a", "self_attn.q_a_proj"},
                               {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                               {"attn_q_b", "self_attn.q_b_proj"},
                               {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                               {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                               {"attn_kv_b", "self_attn.kv_b_proj"},
                               {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                               {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                               {"ffn_down_shexp", "mlp.shared_experts.down_proj"}};
constexpr NameRow kCommon[] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {"ffn_gate_inp", "mlp.gate"}};
// With their endings.
constexpr NameRow kGemma4Whole[] = {{"layer_output_scale.weight", "layer_scalar"},
                                    {"ffn_gate_inp.scale", "router.scale"},
                                    {"ffn_down_exps.scale", "router.per_expert_scale"}};
constexpr NameRow kWhole[] = {{"ssm_a", "linear_attn.A_log"},
                              {"ssm_dt.bias", "linear_attn.dt_bias"},
                              {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
                              {"attn_sinks.weight", "self_attn.sinks"}};

// Behind "mtp."; the last two only in files whose layer has an embedding and a head of its own.
constexpr NameRow kNextn[] = {{"nextn.eh_proj.weight", "fc.weight"},
                              {"nextn.enorm.weight", "pre_fc_norm_embedding.weight"},
                              {"nextn.hnorm.weight", "pre_fc_norm_hidden.weight"},
                              {"nextn.shared_head_norm.weight", "norm.weight"},
                              {"nextn.embed_tokens.weight", "embed_tokens.weight"},
                              {"nextn.shared_head_head.weight", "lm_head.weight"}};
constexpr std::string_view kMtp = "mtp.", kMtpLayer = "layers.0.";

constexpr std::string_view kGateUp = "ffn_gate_up_exps.weight";
// The tensors that hold all experts of a layer; the names are those behind an expert's number.
constexpr NameRow kExperts[] = {
    {"ffn_gate_exps.weight", "gate_proj.weight"}, {"ffn_up_exps.weight", "up_proj.weight"},
    {"ffn_down_exps.weight", "down_proj.weight"}, {"ffn_gate_exps.bias", "gate_proj.bias"},
    {"ffn_up_exps.bias", "up_proj.bias"},         {"ffn_down_exps.bias", "down_proj.bias"}};

using Rows = std::span<const NameRow>;

std::string_view find_name(Rows rows, std::string_view stored) {
  for (const NameRow& row : rows) {
    if (row.stored == stored) return row.name;
  }
  return {};
}

std::string_view find_stored(Rows rows, std::string_view name) {
  for (const NameRow& row : rows) {
    if (row.name == name) return row.stored;
  }
  return {};
}

// The tables of an architecture, in the order in which they count.
std::vector<Rows> tables_of(const GgufArchitecture& architecture) {
  std::vector<Rows> rows;
  if (architecture.name == "gemma3") rows.emplace_back(kGemma3);
  if (architecture.name == "gemma4") rows.emplace_back(kGemma4);
  if (architecture.name == "llama4") rows.emplace_back(kLlama4);
  if (architecture.has_sinks) rows.emplace_back(kGptOss);
  if (architecture.is_hybrid) rows.emplace_back(kHybrid);
  if (architecture.has_mla) rows.emplace_back(kLatent);
  rows.emplace_back(kCommon);
  return rows;
}

// "up_proj.weight" -> {"up_proj", ".weight"}; a name of another ending has none.
std::pair<std::string_view, std::string_view> split_ending(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view ending = name.substr(dot);
  if (ending != ".weight" && ending != ".bias") return {};
  return {name.substr(0, dot), ending};
}

struct NameInLayer {
  std::string_view layer, rest;
};
// "model.layers.3.mlp.up_proj.weight" -> {"3", "mlp.up_proj.weight"}
std::optional<NameInLayer> split_layer_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return NameInLayer{name.substr(0, dot), name.substr(dot + 1)};
}

// "mlp.experts.7.up_proj.weight" -> "up_proj.weight"; empty of what is no expert's.
std::string_view name_in_expert(const GgufArchitecture& architecture, std::string_view name) {
  const std::string_view prefix = architecture.experts;
  if (!name.starts_with(prefix)) return {};
  const size_t digits = name.find_first_not_of("0123456789", prefix.size());
  if (digits == prefix.size() || digits == std::string_view::npos) return {};
  return name.substr(digits + 1);
}

// The table of whole names of an architecture, in the order in which they count.
std::vector<Rows> whole_tables_of(const GgufArchitecture& architecture) {
  std::vector<Rows> rows;
  if (architecture.name == "gemma4") rows.emplace_back(kGemma4Whole);
  rows.emplace_back(kWhole);
  return rows;
}

}  // namespace

std::string_view huggingface_name_outside_layers(std::string_view stored) {
  return find_name(kOutside, stored);
}

std::string huggingface_name_in_layer(const GgufArchitecture& architecture,
                                      std::string_view stored) {
  for (const Rows& rows : whole_tables_of(architecture)) {
    const std::string_view whole = find_name(rows, stored);
    if (!whole.empty()) return std::string(whole);
  }
  const auto [base, ending] = split_ending(stored);
  if (base.empty()) return {};
  for (const Rows& rows : tables_of(architecture)) {
    const std::string_view name = find_name(rows, base);
    if (!name.empty()) return fmt::format("{}{}", name, ending);
  }
  return {};
}

namespace {

// The stored name of a layer's tensor, both without the layer's name; empty where there is none.
std::string stored_name_in_layer(const GgufArchitecture& architecture, std::string_view name) {
  if (const std::string_view part = name_in_expert(architecture, name); !part.empty()) {
    const bool is_half = part == "gate_proj.weight" || part == "up_proj.weight";
    if (architecture.fuses_gate_up && is_half) return std::string(kGateUp);
    return std::string(find_stored(kExperts, part));
  }
  for (const Rows& rows : whole_tables_of(architecture)) {
    const std::string_view stored = find_stored(rows, name);
    if (!stored.empty()) return std::string(stored);
  }
  const auto [base, ending] = split_ending(name);
  if (base.empty()) return {};
  for (const Rows& rows : tables_of(architecture)) {
    const std::string_view found = find_stored(rows, base);
    if (found.empty()) continue;
    // The names of other tables may be another tensor's here.
    const std::string stored = fmt::format("{}{}", found, ending);
    if (huggingface_name_in_layer(architecture, stored) == name) return stored;
  }
  return {};
}

}  // namespace

std::string huggingface_name_in_mtp(const GgufArchitecture& architecture, std::string_view stored) {
  if (!architecture.is_hybrid) return {};
  if (const std::string_view own = find_name(kNextn, stored); !own.empty()) {
    return fmt::format("{}{}", kMtp, own);
  }
  const std::string name = huggingface_name_in_layer(architecture, stored);
  return name.empty() ? name : fmt::format("{}{}{}", kMtp, kMtpLayer, name);
}

namespace {

// `name` is that behind "mtp.".
std::string stored_name_in_mtp(const GgufArchitecture& architecture, std::string_view name) {
  if (!name.starts_with(kMtpLayer)) return std::string(find_stored(kNextn, name));
  return stored_name_in_layer(architecture, name.substr(kMtpLayer.size()));
}

}  // namespace

std::string gguf_stored_name(const GgufArchitecture& architecture, std::string_view name,
                             int64_t num_layers) {
  if (const std::string_view outside = find_stored(kOutside, name); !outside.empty()) {
    return std::string(outside);
  }
  if (architecture.is_hybrid && name.starts_with(kMtp)) {
    const std::string stored = stored_name_in_mtp(architecture, name.substr(kMtp.size()));
    return stored.empty() ? stored : fmt::format("blk.{}.{}", num_layers, stored);
  }
  const std::optional<NameInLayer> in_layer = split_layer_name(name);
  if (!in_layer) return {};
  const std::string stored = stored_name_in_layer(architecture, in_layer->rest);
  return stored.empty() ? stored : fmt::format("blk.{}.{}", in_layer->layer, stored);
}

}  // namespace strata
