// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4: attention over a window and compressed entries, experts chosen by a table in the
// first layers and by score in the others, and a residual of several streams; and a layer of
// multi-token prediction (mtp.0.), which takes part where it is asked for. Sources: HF
// modeling_deepseek_v4.py, configuration_deepseek_v4.py (all defaults here), conversion_mapping.py
// (names).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "model/blocks/compressed/compressed_attention.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/mtp_input.h"
#include "model/connectors/hyper_connection.h"
#include "model/connectors/replace.h"
#include "model/families/family.h"
#include "model/families/renaming.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"DeepseekV4ForCausalLM"};
constexpr std::string_view kModelTypes[] = {"deepseek_v4"};
constexpr std::string_view kRead[] = {"qk_rope_head_dim",
                                      "q_lora_rank",
                                      "o_groups",
                                      "o_lora_rank",
                                      "sliding_window",
                                      "layer_types",
                                      "compress_rates",
                                      "compress_ratios",
                                      "compress_rate_csa",
                                      "compress_rate_hca",
                                      "compress_rope_theta",
                                      "index_n_heads",
                                      "index_head_dim",
                                      "index_topk",
                                      "hc_mult",
                                      "hc_sinkhorn_iters",
                                      "hc_eps",
                                      "mlp_layer_types",
                                      "num_hash_layers",
                                      "num_nextn_predict_layers",
                                      "n_routed_experts",
                                      "num_local_experts",
                                      "n_shared_experts",
                                      "num_experts_per_tok",
                                      "moe_intermediate_size",
                                      "routed_scaling_factor",
                                      "swiglu_limit"};
// Weights of the chosen experts sum to one whatever norm_topk_prob says.
constexpr std::string_view kInert[] = {"norm_topk_prob",         "output_router_logits",
                                       "router_aux_loss_coef",   "router_jitter_noise",
                                       "expert_dtype",           "auto_map",
                                       "_experts_implementation"};
constexpr NeutralKey kNeutral[] = {
    {"scoring_func", "\"sqrtsoftplus\""}, {"topk_method", "\"noaux_tc\""}, {"mlp_bias", "false"}};
constexpr std::string_view kIgnored[] = {"mtp."};

enum class Attention : uint8_t { kSliding, kSparse, kHeavy };
constexpr std::string_view kTypes[] = {"sliding_attention", "compressed_sparse_attention",
                                       "heavily_compressed_attention"};
constexpr int64_t kRatios[] = {0, 4, 128};  // by which compress_ratios names the types

// The names of the published files, from the canonical ones; in this order.
constexpr Renaming kUpstream[] = {{"lm_head.", "head."},
                                  {".self_attn.", ".attn."},
                                  {".mlp.", ".ffn."},
                                  {".compressor.indexer.scorer.", ".indexer."},
                                  {".compressor.indexer.q_b_proj", ".indexer.wq_b"},
                                  {".compressor.indexer.", ".indexer.compressor."},
                                  {".compressor.kv_norm", ".compressor.norm"},
                                  {".position_bias", ".ape"},
                                  {".input_layernorm", ".attn_norm"},
                                  {".post_attention_layernorm", ".ffn_norm"},
                                  {".attn_hc.", ".hc_attn_"},
                                  {".ffn_hc.", ".hc_ffn_"},
                                  {".sinks", ".attn_sink"},
                                  {".q_a_norm", ".q_norm"},
                                  {".q_a_proj", ".wq_a"},
                                  {".q_b_proj", ".wq_b"},
                                  {".o_a_proj", ".wo_a"},
                                  {".o_b_proj", ".wo_b"},
                                  {".kv_proj", ".wkv"},
                                  {"e_score_correction_bias", "bias"},
                                  {"model.embed_tokens.", "model.embed."},
                                  {".hc_head.hc_", ".hc_head_"}};
constexpr Renaming kGate[] = {{".gate_proj", ".wgate"}};
constexpr Renaming kSavedNorm[] = {{".attn.kv_norm.", ".attn.norm."}};
constexpr Renaming kOlderScorer[] = {{".indexer.scorer.", ".indexer."}};
constexpr Renaming kExperts[] = {{".gate_proj", ".w1"}, {".up_proj", ".w3"}, {".down_proj", ".w2"}};

// The name in the published files, but with "model.".
std::string published_name(const std::string& name) {
  std::string upstream = rename_all(name, kUpstream);
  if (upstream.find("experts.") != std::string::npos) upstream = rename_all(upstream, kExperts);
  return rename_all(std::move(upstream), kGate);
}

// What transformers 5 saves (of the layer of multi-token prediction, which it does not, what is
// published), what is published (without "model."), names that have a part of both, and an older
// name of the indexer's head weights.
std::vector<std::string> names_in_files(const std::string& name) {
  const std::string upstream = published_name(name);
  std::string saved = rename_all(upstream, kSavedNorm);
  std::string older = rename_all(name, kOlderScorer);
  constexpr std::string_view kModel = "model.";
  std::string published = upstream.starts_with(kModel) ? upstream.substr(kModel.size()) : upstream;
  const bool is_mtp = name.starts_with("model.mtp.");
  const bool is_renamed = name.starts_with("model.layers.") || name.starts_with("lm_head.");
  std::vector<std::string> names = {is_mtp ? published : is_renamed ? saved : name};
  for (std::string* other : {&saved, &published, &older}) names.push_back(std::move(*other));
  // Which files have the layer of multi-token prediction next to "model.".
  if (is_mtp) names.push_back(name.substr(kModel.size()));
  return names;
}

// A list names the `num_layers` layers, and then perhaps those of multi-token prediction.
void check_length(const ConfigObject& object, std::string_view key, int64_t got,
                  int64_t num_layers) {
  if (got >= num_layers) return;
  object.fail(fmt::format("{}: got {} layers, num_hidden_layers is {}", key, got, num_layers));
}

Attention parse_attention_type(const ConfigObject& object, const std::string& name) {
  const auto* found = std::find(std::begin(kTypes), std::end(kTypes), name);
  if (found == std::end(kTypes)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: layer_types: got '{}', supported are {}, {} and {}",
                            object.where(), name, kTypes[0], kTypes[1], kTypes[2]));
  }
  return static_cast<Attention>(found - std::begin(kTypes));
}

Attention attention_type_of_ratio(const ConfigObject& object, int64_t ratio) {
  const auto* found = std::find(std::begin(kRatios), std::end(kRatios), ratio);
  if (found == std::end(kRatios)) {
    object.fail(fmt::format("compress_ratios: got {}, want 0, 4 or 128", ratio));
  }
  return static_cast<Attention>(found - std::begin(kRatios));
}

// The kinds of all layers, and then that of multi-token prediction's.
std::vector<Attention> read_attention_types(const ConfigObject& object, int64_t num_layers) {
  std::vector<Attention> types;
  if (object.has("layer_types")) {
    for (const std::string& name : object.texts("layer_types")) {
      types.push_back(parse_attention_type(object, name));
    }
    check_length(object, "layer_types", std::ssize(types), num_layers);
  } else if (object.has("compress_ratios")) {
    for (const int64_t ratio : object.integers("compress_ratios")) {
      types.push_back(attention_type_of_ratio(object, ratio));
    }
    check_length(object, "compress_ratios", std::ssize(types), num_layers);
  } else {
    for (int64_t i = 0; i < num_layers; ++i) {
      types.push_back(i >= 2 && i % 2 == 1 ? Attention::kSparse : Attention::kHeavy);
    }
  }
  types.resize(static_cast<size_t>(num_layers) + 1, Attention::kSliding);
  return types;
}

// Those that mlp_layer_types calls so.
std::vector<bool> read_listed_hash_routed_layers(const ConfigObject& object, int64_t num_layers) {
  std::vector<bool> tables;
  for (const std::string& name : object.texts("mlp_layer_types")) {
    if (name != "hash_moe" && name != "moe") {
      object.fail(fmt::format("mlp_layer_types: got '{}', want hash_moe or moe", name));
    }
    tables.push_back(name == "hash_moe");
  }
  check_length(object, "mlp_layer_types", std::ssize(tables), num_layers);
  tables.resize(static_cast<size_t>(num_layers));
  return tables;
}

// Which layers choose experts by a table.
std::vector<bool> read_hash_routed_layers(const ConfigObject& object, int64_t num_layers) {
  if (object.has("mlp_layer_types")) return read_listed_hash_routed_layers(object, num_layers);
  const int64_t count = object.integer("num_hash_layers", 3);
  if (count < 0) object.fail(fmt::format("num_hash_layers: got {}, want at least 0", count));
  std::vector<bool> tables;
  for (int64_t i = 0; i < num_layers; ++i) tables.push_back(i < count);
  return tables;
}

// Columns of a head that are rotated.
int64_t read_rope_dim(const ConfigObject& object, int64_t head_dim) {
  const double factor =
      read_partial_rotary(object, {.partial_rotary_factor = 64.0 / 512.0, .is_partial = true});
  const auto by_factor = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  const int64_t dim = object.integer("qk_rope_head_dim", by_factor);
  if (object.has("partial_rotary_factor") && dim != by_factor) {
    object.fail(
        fmt::format("qk_rope_head_dim {} and partial_rotary_factor {} of head_dim {} "
                    "disagree",
                    dim, object.json("partial_rotary_factor"), head_dim));
  }
  return dim;
}

// The model has no magnitude factor of YaRN, whatever the scaling's other keys would make of it.
// transformers 5.23 fills in a factor of 1 where one scaling leaves it out, and computes another
// where it is null or settings by kind of layer leave it out: no file says that on purpose.
RopeConfig strip_yarn_magnitude(const ConfigObject& object, RopeConfig rope, bool is_filled_in) {
  if (rope.type == RopeType::kYarn && !rope.attention_factor && is_filled_in) {
    rope.attention_factor = 1.0;
  }
  if (const double factor = rope_attention_factor(rope); factor != 1.0) {
    object.fail(fmt::format(
        "attention_factor: {} {}, DeepSeek-V4 has none; write \"attention_factor\": 1.0",
        rope.attention_factor ? "got" : "not there, so that transformers takes", factor));
  }
  rope.attention_factor = 1.0;
  rope.mscale = rope.mscale_all_dim = 0.0;
  return rope;
}

void check_theta(const ConfigObject& object, const RopeConfig& rope) {
  if (rope.theta > 0.0 && std::isfinite(rope.theta)) return;
  object.fail("rope_theta and compress_rope_theta must be more than 0");
}

RopeConfig read_rope_settings(const ConfigObject& object, const ConfigObject& settings,
                              double theta) {
  return read_rope_scaling(object, settings,
                           {.theta = theta, .is_partial = true, .truncate = true});
}

struct Ropes {
  RopeConfig sliding, compressed;
};

// Two tables: plain for sliding layers, and for the others one of its own theta, with the scaling.
// Files name them main and compress (transformers 5), or have one scaling, which is the latter's.
Ropes read_ropes(const ConfigObject& object) {
  const double theta = object.number("rope_theta", 10000.0);
  const double compressed_theta = object.number("compress_rope_theta", 160000.0);
  Ropes ropes = {.sliding = {.theta = theta}, .compressed = {.theta = compressed_theta}};
  const auto parameters = object.object("rope_parameters");
  const auto main = parameters ? parameters->object("main") : std::nullopt;
  const auto compress = parameters ? parameters->object("compress") : std::nullopt;
  bool is_filled_in = false;
  if (main && compress) {
    ropes.sliding = read_rope_settings(object, *main, theta);
    ropes.compressed = read_rope_settings(object, *compress, compressed_theta);
  } else if (const auto flat = parameters ? parameters : object.object("rope_scaling")) {
    ropes.compressed = read_rope_settings(object, *flat, compressed_theta);
    ropes.compressed.theta = compressed_theta;
    is_filled_in = !flat->contains("attention_factor");
  }
  for (RopeConfig* rope : {&ropes.sliding, &ropes.compressed}) {
    *rope = strip_yarn_magnitude(object, *rope, is_filled_in);
    rope->partial_rotary_factor = 1.0;  // the table has the rotated columns alone
    check_theta(object, *rope);
  }
  return ropes;
}

// Tokens of an entry, by type.
int64_t read_compress_ratio(const ConfigObject& object, Attention type) {
  if (type == Attention::kSliding) return 0;
  const auto index = static_cast<size_t>(type);
  const std::string_view older =
      type == Attention::kSparse ? "compress_rate_csa" : "compress_rate_hca";
  if (object.has(older)) return read_size(object, older);
  const auto rates = object.object("compress_rates");
  return rates ? read_size(*rates, kTypes[index], kRatios[index]) : kRatios[index];
}

CompressedAttentionConfig read_attention(const ConfigObject& object, const DecoderKeys& keys,
                                         const ModelConfig& config) {
  CompressedAttentionConfig c;
  c.num_heads = keys.num_heads;
  c.head_dim = read_size(object, "head_dim", 512);
  c.rope_dim = read_rope_dim(object, c.head_dim);
  c.q_lora_rank = read_size(object, "q_lora_rank", 1024);
  c.num_groups = read_size(object, "o_groups", 8);
  c.o_lora_rank = read_size(object, "o_lora_rank", 1024);
  c.window = read_size(object, "sliding_window", 128);
  c.eps = config.rms_norm_eps;
  const int64_t kv_heads = object.integer("num_key_value_heads", 1);
  if (kv_heads != 1) {
    object.fail(fmt::format("num_key_value_heads: got {}, DeepSeek-V4 has 1", kv_heads));
  }
  if (keys.attention_bias) object.fail("attention_bias: got true, DeepSeek-V4 has none");
  return c;
}

CompressedAttentionConfig read_attention_of_type(const ConfigObject& object,
                                                 CompressedAttentionConfig c, Attention type,
                                                 int sliding_rope, int compressed_rope) {
  c.rope = type == Attention::kSliding ? sliding_rope : compressed_rope;
  c.ratio = read_compress_ratio(object, type);
  c.overlap = type == Attention::kSparse;
  if (type != Attention::kSparse) return c;
  c.index_heads = read_size(object, "index_n_heads", 64);
  c.index_dim = read_size(object, "index_head_dim", 128);
  c.top_k = read_size(object, "index_topk", 512);
  return c;
}

MoeConfig read_moe(const ConfigObject& object, const ModelConfig& config) {
  MoeConfig moe;
  moe.num_experts =
      read_size(object, choose_present_key(object, "n_routed_experts", "num_local_experts"), 256);
  moe.top_k = read_size(object, "num_experts_per_tok", 6);
  moe.expert_width = read_size(object, "moe_intermediate_size", 2048);
  const int64_t shared = object.integer("n_shared_experts", 1);
  if (shared != 1) {
    object.fail(fmt::format("n_shared_experts: got {}, only 1 is supported", shared));
  }
  moe.shared_width = moe.expert_width;
  moe.norm_topk = true;
  moe.scale = object.number("routed_scaling_factor", 1.5);
  moe.vocab_size = config.vocab_size;
  moe.clamp.limit = static_cast<float>(object.number("swiglu_limit", 10.0));
  if (!(moe.clamp.limit > 0.0f)) {
    object.fail(fmt::format("swiglu_limit: got {}, want more than 0", moe.clamp.limit));
  }
  return moe;
}

struct StreamSettings {
  int64_t num_streams;
  double eps;
  int steps;
};

StreamSettings read_stream_settings(const ConfigObject& object) {
  const int64_t num_streams = object.integer("hc_mult", 4);
  const int64_t steps = object.integer("hc_sinkhorn_iters", 20);
  const std::string fault = hyper_connection_fault(num_streams, steps);
  if (!fault.empty()) object.fail(fault);
  const double eps = object.number("hc_eps", 1e-6);
  if (!(eps >= 0.0) || !std::isfinite(eps)) {
    object.fail(fmt::format("hc_eps: got {}, want at least 0", eps));
  }
  return {.num_streams = num_streams, .eps = eps, .steps = static_cast<int>(steps)};
}

Connector make_hyper_connection(const ModelConfig& config, const StreamSettings& settings,
                                std::string_view norm,
                                const std::array<std::string_view, 3>& parameters) {
  return Connector(kHyperConnection, HyperConnectionConfig{.norm = norm,
                                                           .fn = parameters[0],
                                                           .base = parameters[1],
                                                           .scale = parameters[2],
                                                           .num_streams = settings.num_streams,
                                                           .norm_eps = config.rms_norm_eps,
                                                           .eps = settings.eps,
                                                           .steps = settings.steps});
}

// What comes before the sublayers of a decoder's layer in that of multi-token prediction.
Sublayer mtp_input(const ModelConfig& config, const StreamSettings& settings) {
  return {Connector(kReplace, ReplaceConfig()),
          Block(kMtpInput,
                MtpInputConfig{.num_streams = settings.num_streams, .eps = config.rms_norm_eps})};
}

int64_t read_num_mtp_layers(const ConfigObject& object) {
  const int64_t count = object.integer("num_nextn_predict_layers", 1);
  if (count < 0) {
    object.fail(fmt::format("num_nextn_predict_layers: got {}, want 0 or more", count));
  }
  return count;
}

// What a decoder's layers are made of.
struct LayerParts {
  Connector before_attention, before_experts;
  CompressedAttentionConfig attention;  // but for what its type says
  int sliding_rope, compressed_rope;
  MoeConfig moe;  // but for its router
};

// Adds the rotary tables that they name.
LayerParts read_layer_parts(const ConfigObject& object, const DecoderKeys& keys,
                            const StreamSettings& settings, ModelConfig& config) {
  const CompressedAttentionConfig attention = read_attention(object, keys, config);
  const Ropes ropes = read_ropes(object);
  return {
      .before_attention = make_hyper_connection(config, settings, "input_layernorm.weight",
                                                {"attn_hc.fn", "attn_hc.base", "attn_hc.scale"}),
      .before_experts = make_hyper_connection(config, settings, "post_attention_layernorm.weight",
                                              {"ffn_hc.fn", "ffn_hc.base", "ffn_hc.scale"}),
      .attention = attention,
      .sliding_rope = config.ensure_rope({ropes.sliding, attention.rope_dim}),
      .compressed_rope = config.ensure_rope({ropes.compressed, attention.rope_dim}),
      .moe = read_moe(object, config)};
}

LayerConfig make_layer(const ConfigObject& object, const LayerParts& parts, Attention type,
                       RouterKind router) {
  const CompressedAttentionConfig attention = read_attention_of_type(
      object, parts.attention, type, parts.sliding_rope, parts.compressed_rope);
  MoeConfig moe = parts.moe;
  moe.router = router;
  return {{parts.before_attention, Block(kCompressedAttention, attention)},
          {parts.before_experts, Block(kMoe, moe)}};
}

void read_deepseek_v4(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  config.names_in_files = names_in_files;
  config.ignored_prefixes.assign(std::begin(kIgnored), std::end(kIgnored));
  const StreamSettings settings = read_stream_settings(object);
  config.streams = Streams(kHyperHead, settings.num_streams,
                           HyperHeadConfig{.norm_eps = config.rms_norm_eps, .eps = settings.eps});
  const LayerParts parts = read_layer_parts(object, keys, settings, config);
  const std::vector<Attention> types = read_attention_types(object, keys.num_layers);
  const std::vector<bool> tables = read_hash_routed_layers(object, keys.num_layers);
  for (size_t i = 0; i < tables.size(); ++i) {
    const RouterKind router = tables[i] ? RouterKind::kTable : RouterKind::kSqrtSoftplus;
    config.layers.push_back(make_layer(object, parts, types[i], router));
  }
  if (read_num_mtp_layers(object) != 1) return;  // chains of several are not known
  config.mtp_layer = make_layer(object, parts, types.back(), RouterKind::kSqrtSoftplus);
  config.mtp_layer->insert(config.mtp_layer->begin(), mtp_input(config, settings));
}

}  // namespace

extern const Family kDeepseekV4Family = {.name = "deepseek_v4",
                                         .architectures = kArchitectures,
                                         .model_types = kModelTypes,
                                         .read_keys = kRead,
                                         .inert_keys = kInert,
                                         .neutral_keys = kNeutral,
                                         .defaults = {.vocab_size = 129280,
                                                      .hidden_size = 4096,
                                                      .intermediate_size = 1,  // it has none
                                                      .num_layers = 43,
                                                      .num_heads = 64,
                                                      .max_position_embeddings = 1048576},
                                         .read = read_deepseek_v4};

}  // namespace strata::model
