// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's convert_hf_to_gguf.py and gguf-py's constants.py.
#include "model/export/gguf_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/gguf/llama3_scaling.h"
#include "model/blocks/experts/moe.h"
#include "model/blocks/gated_delta_net.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/blocks/mla.h"

namespace strata::model {
namespace {

struct FamilyRow {
  std::string_view family, architecture;
};
constexpr FamilyRow kRows[] = {
    {"llama", "llama"},     {"mistral", "llama"},         {"qwen2", "qwen2"},
    {"qwen3", "qwen3"},     {"qwen3_moe", "qwen3moe"},    {"qwen3_5", "qwen35"},
    {"gemma3", "gemma3"},   {"qwen3_5_moe", "qwen35moe"}, {"deepseek_v3", "deepseek2"},
    {"gpt_oss", "gpt-oss"}, {"gemma4", "gemma4"},         {"gemma4_unified", "gemma4"},
    {"llama4", "llama4"}};

// The config of the first block of a kind in any layer, or null.
template <typename Config>
const Config* find_first_block(const ModelConfig& config, const BlockOps& ops) {
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    if (const Config* found = config.find_block_config<Config>(layer, ops)) return found;
  }
  return nullptr;
}

// Whether all layers slide but the n-th, the 2 n-th and so on.
bool slides_all_but_every(size_t n, const std::vector<bool>& sliding) {
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i] != (i % n < n - 1)) return false;
  }
  return true;
}

class KeyWriter {
 public:
  KeyWriter(const ModelConfig& config, GgufHeader& header)
      : config_(config), header_(header), architecture_(require_gguf_architecture(config)) {}

  void write_keys() {
    add_integer("context_length", config_.max_position_embeddings);
    add_integer("embedding_length", config_.hidden_size);
    const int64_t num_mtp_layers = config_.use_mtp ? 1 : 0;
    add_integer("block_count", config_.num_layers() + num_mtp_layers);
    if (config_.use_mtp) add_integer("nextn_predict_layers", num_mtp_layers);
    add_number("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    add_integer("vocab_size", config_.vocab_size);
    if (architecture_.name == "gemma4") {
      write_gemma4();
    } else {
      if (const auto* mlp = find_first_block<GatedMlpConfig>(config_, kGatedMlp)) {
        add_integer("feed_forward_length", mlp->width);
      }
      if (const auto* gqa = find_first_block<GqaConfig>(config_, kGqa)) write_attention(*gqa);
    }
    if (const auto* mla = find_first_block<MlaConfig>(config_, kMla)) write_mla(*mla);
    if (const auto* moe = find_first_block<MoeConfig>(config_, kMoe)) write_experts(*moe);
    if (architecture_.name == "llama4") write_llama4();
    if (const auto* net = find_first_block<GatedDeltaNetConfig>(config_, kGatedDeltaNet)) {
      write_delta_net(*net);
    }
    if (architecture_.has_sinks) add_integer("attention.sliding_window", widest_window());
    if (architecture_.name == "gemma3" || architecture_.name == "gemma4") {
      write_windows_and_ropes();
    } else if (!config_.ropes.empty()) {
      write_rope(config_.ropes.front().config);
    }
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const {
    return fmt::format("{}.{}", architecture_.name, name);
  }
  void add_integer(std::string_view name, int64_t value) { header_.add_integer(key(name), value); }
  void add_number(std::string_view name, double value) { header_.add_number(key(name), value); }

  void write_attention(const GqaConfig& gqa) {
    add_integer("attention.head_count", gqa.num_heads);
    add_integer("attention.head_count_kv", gqa.num_kv_heads);
    add_integer("attention.key_length", gqa.head_dim);
    add_integer("attention.value_length", gqa.head_dim);
    add_integer("rope.dimension_count", gqa.rotary_dim == 0 ? gqa.head_dim : gqa.rotary_dim);
  }

  [[nodiscard]] const GqaConfig& attention_of(int64_t layer) const {
    return *config_.find_block_config<GqaConfig>(layer, kGqa);
  }
  // The width of the MLP that every layer of Gemma 4 has, in a block of its own or next to experts.
  [[nodiscard]] int64_t mlp_width(int64_t layer) const {
    const auto* moe = config_.find_block_config<MoeConfig>(layer, kMoe);
    if (moe != nullptr) return moe->shared_width;
    return config_.find_block_config<GatedMlpConfig>(layer, kGatedMlp)->width;
  }

  // Sizes that differ by layer; the last layer has no window.
  void write_gemma4() {
    const int64_t num_layers = config_.num_layers();
    std::vector<int64_t> kv_heads, widths;
    const GqaConfig& full = attention_of(num_layers - 1);
    int64_t sliding_dim = full.head_dim, num_shared = 0;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      const GqaConfig& gqa = attention_of(layer);
      kv_heads.push_back(gqa.num_kv_heads);
      widths.push_back(mlp_width(layer));
      if (gqa.window > 0) sliding_dim = gqa.head_dim;
      if (gqa.kv_layer) ++num_shared;
    }
    add_integer("attention.head_count", full.num_heads);
    add_layer_integers("attention.head_count_kv", kv_heads);
    add_layer_integers("feed_forward_length", widths);
    for (const char* of :
         {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
      add_integer(of, full.head_dim);
      add_integer(fmt::format("{}_swa", of), sliding_dim);
    }
    add_integer("attention.shared_kv_layers", num_shared);
    add_integer("embedding_length_per_layer_input",
                config_.per_layer_inputs ? config_.per_layer_inputs->width : 0);
    if (config_.logit_map.cap != 0.0f)
      add_number("final_logit_softcapping", static_cast<double>(config_.logit_map.cap));
  }

  // One value where all layers have the same.
  void add_layer_integers(std::string_view name, const std::vector<int64_t>& values) {
    const bool is_one =
        std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values.front(); });
    if (is_one) return add_integer(name, values.front());
    header_.add_integers(key(name), values);
  }

  void write_mla(const MlaConfig& mla) {
    add_integer("attention.head_count", mla.num_heads);
    add_integer("attention.head_count_kv", mla.num_heads);
    if (mla.q_lora_rank > 0) add_integer("attention.q_lora_rank", mla.q_lora_rank);
    add_integer("attention.kv_lora_rank", mla.kv_lora_rank);
    add_integer("attention.key_length", mla.head_dim());
    add_integer("attention.value_length", mla.value_dim);
    add_integer("rope.dimension_count", mla.rope_dim);
    add_integer("leading_dense_block_count", num_leading_dense_layers());
  }

  [[nodiscard]] int64_t num_leading_dense_layers() const {
    int64_t dense = 0;
    while (dense < config_.num_layers() &&
           config_.find_block_config<MoeConfig>(dense, kMoe) == nullptr) {
      ++dense;
    }
    return dense;
  }

  void write_experts(const MoeConfig& moe) {
    add_integer("expert_count", moe.num_experts);
    add_integer("expert_used_count", moe.top_k);
    add_integer("expert_feed_forward_length", moe.expert_width);
    if (architecture_.name == "qwen35moe") {
      add_integer("expert_shared_feed_forward_length", moe.shared_width);
    }
    if (!architecture_.has_mla) return;
    add_integer("expert_shared_count", moe.shared_width / moe.expert_width);
    add_integer("expert_group_count", moe.num_groups);
    add_integer("expert_group_used_count", moe.top_groups);
    add_number("expert_weights_scale", moe.scale);
    header_.add_boolean(key("expert_weights_norm"), moe.norm_topk);
    constexpr int64_t kSigmoid = 2;
    add_integer("expert_gating_func", kSigmoid);
  }

  // llama.cpp asks for the width of dense layers even where there are none.
  void write_llama4() {
    int64_t first = 0;
    while (config_.find_block_config<MoeConfig>(first, kMoe) == nullptr) ++first;
    add_integer("interleave_moe_layer_step", first + 1);
    if (find_first_block<GatedMlpConfig>(config_, kGatedMlp) == nullptr) {
      const auto& moe = *config_.find_block_config<MoeConfig>(first, kMoe);
      add_integer("feed_forward_length", 2 * moe.expert_width);
    }
  }

  void write_delta_net(const GatedDeltaNetConfig& net) {
    add_integer("ssm.conv_kernel", net.conv_width);
    add_integer("ssm.state_size", net.key_dim);
    add_integer("ssm.group_count", net.num_key_heads);
    add_integer("ssm.time_step_rank", net.num_value_heads);
    add_integer("ssm.inner_size", net.value_width());
    add_integer("full_attention_interval", full_attention_interval());
    if (const auto* gqa = find_first_block<GqaConfig>(config_, kGqa)) write_rope_sections(*gqa);
  }

  // As far as the layers have one.
  [[nodiscard]] int64_t full_attention_interval() const {
    int64_t interval = 1;
    while (interval < config_.num_layers() &&
           config_.find_block_config<GqaConfig>(interval - 1, kGqa) == nullptr) {
      ++interval;
    }
    return interval;
  }

  // Positions of text are the same on all axes: how they share the pairs changes nothing.
  void write_rope_sections(const GqaConfig& gqa) {
    const int64_t pairs = (gqa.rotary_dim == 0 ? gqa.head_dim : gqa.rotary_dim) / 2;
    const int64_t third = pairs / 3;
    const int64_t sections[] = {pairs - 2 * third, third, third, 0};
    header_.add_integers(key("rope.dimension_sections"), sections);
  }

  // Which layers slide, in which window, and the rotary tables of both kinds; null: no such layer.
  struct Windows {
    int64_t window = 0;
    std::vector<bool> sliding;
    const RopeConfig* full = nullptr;
    const RopeConfig* local = nullptr;
  };
  [[nodiscard]] Windows collect_windows() const {
    Windows out;
    for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
      const auto& gqa = *config_.find_block_config<GqaConfig>(layer, kGqa);
      out.sliding.push_back(gqa.window > 0);
      out.window = std::max(out.window, gqa.window);
      (gqa.window > 0 ? out.local : out.full) =
          &config_.ropes[static_cast<size_t>(gqa.rope)].config;
    }
    return out;
  }

  // Which layers have it llama.cpp takes as given: the reader's layers must be the model's.
  [[nodiscard]] int64_t widest_window() const {
    const int64_t window = collect_windows().window;
    return window == 0 ? config_.max_position_embeddings : window;
  }

  void write_windows_and_ropes() {
    const Windows windows = collect_windows();
    add_integer("attention.sliding_window", widest_window());
    write_window_pattern(windows.sliding);
    if (windows.local != nullptr) add_number("rope.freq_base_swa", windows.local->theta);
    write_rope(windows.full == nullptr ? config_.ropes.front().config : *windows.full);
  }

  // llama.cpp takes every sixth layer as a full one where the file does not say.
  void write_window_pattern(const std::vector<bool>& sliding) {
    constexpr size_t kDefault = 6;
    if (architecture_.name == "gemma4") {
      return header_.add_booleans(key("attention.sliding_window_pattern"), sliding);
    }
    if (slides_all_but_every(kDefault, sliding)) return;
    for (size_t n = 1; n <= sliding.size(); ++n) {
      if (slides_all_but_every(n, sliding)) {
        return add_integer("attention.sliding_window_pattern", static_cast<int64_t>(n));
      }
    }
    header_.add_booleans(key("attention.sliding_window_pattern"), sliding);
  }

  void write_rope(const RopeConfig& rope) {
    add_number("rope.freq_base", rope.theta);
    if (rope.type != RopeType::kLinear && rope.type != RopeType::kYarn) return;
    const bool is_yarn = rope.type == RopeType::kYarn;
    header_.add_text(key("rope.scaling.type"), is_yarn ? "yarn" : "linear");
    add_number("rope.scaling.factor", rope.factor);
    if (!is_yarn) return;
    add_integer("rope.scaling.original_context_length",
                static_cast<int64_t>(rope.original_max_position_embeddings));
    add_number("rope.scaling.yarn_beta_fast", rope.beta_fast);
    add_number("rope.scaling.yarn_beta_slow", rope.beta_slow);
    if (rope.mscale_all_dim != 0.0) {
      add_number("rope.scaling.yarn_log_multiplier",
                 architecture_.has_mla ? 0.1 * rope.mscale_all_dim : rope.mscale_all_dim);
    } else if (rope.attention_factor) {
      add_number("rope.scaling.yarn_attn_factor",
                 *rope.attention_factor / (0.1 * std::log(rope.factor) + 1.0));
    }
  }

  const ModelConfig& config_;
  GgufHeader& header_;
  const GgufArchitecture& architecture_;
};

// Pairs that do not turn are divided by more than any position.
std::vector<float> proportional_divisors(const RopeSpec& rope) {
  constexpr float kStill = 1e30f;
  std::vector<float> divisors;
  for (const double frequency : rope_frequencies(rope.config, rope.dim)) {
    divisors.push_back(frequency == 0.0 ? kStill : 1.0f);
  }
  return divisors;
}

// In what the attention of one layer differs; empty where in nothing.
std::string attention_difference(const ModelConfig& a, const ModelConfig& b, int64_t layer) {
  const auto* latent = a.find_block_config<MlaConfig>(layer, kMla);
  const auto* other = b.find_block_config<MlaConfig>(layer, kMla);
  if (latent != nullptr && other != nullptr) {
    if (latent->rope_interleave != other->rope_interleave) return "rope_interleave";
    if (latent->scale != other->scale) return "rope_scaling";
  }
  const auto* x = a.find_block_config<GqaConfig>(layer, kGqa);
  const auto* y = b.find_block_config<GqaConfig>(layer, kGqa);
  if (x == nullptr || y == nullptr) return {};
  if (x->in_chunks && x->window != y->window) {
    return fmt::format("attention_chunk_size ({})", x->window);
  }
  if (x->window != y->window) return fmt::format("sliding_window ({})", x->window);
  if (x->scale != y->scale) return "query_pre_attn_scalar";
  if (x->plain_qk_norm != y->plain_qk_norm) return "use_qk_norm";
  if ((x->rope == kNoRope) != (y->rope == kNoRope)) return "no_rope_layers";
  if (x->rope == kNoRope) return {};
  const RopeSpec& rope = a.ropes[static_cast<size_t>(x->rope)];
  if (!(rope == b.ropes[static_cast<size_t>(y->rope)])) return "rope_scaling";
  return {};
}

// In what one layer differs; empty where in nothing.
std::string layer_difference(const ModelConfig& a, const ModelConfig& b, int64_t layer) {
  const std::string of_attention = attention_difference(a, b, layer);
  if (!of_attention.empty()) return fmt::format("{} of layer {}", of_attention, layer);
  const auto* x = a.find_block_config<MoeConfig>(layer, kMoe);
  const auto* y = b.find_block_config<MoeConfig>(layer, kMoe);
  if (x != nullptr && y != nullptr && x->norm_topk != y->norm_topk) {
    return fmt::format("norm_topk_prob {}", x->norm_topk);
  }
  if (x != nullptr && y != nullptr && x->clamp.limit != y->clamp.limit) {
    return fmt::format("swiglu_limit ({})", x->clamp.limit);
  }
  if ((x == nullptr) != (y == nullptr)) return "moe_layers";
  const auto at = static_cast<size_t>(layer);
  return a.layers[at] == b.layers[at] ? "" : fmt::format("a setting of layer {}", layer);
}

// `wants_experts`: every layer must have them.
std::string find_llama_cpp_layer_fault(const ModelConfig& config, int64_t layer,
                                       bool wants_experts) {
  const auto* net = config.find_block_config<GatedDeltaNetConfig>(layer, kGatedDeltaNet);
  if (net != nullptr && net->key_dim != net->value_dim) {
    return fmt::format("linear_value_head_dim ({}; linear_key_head_dim is {})", net->value_dim,
                       net->key_dim);
  }
  const auto* gqa = config.find_block_config<GqaConfig>(layer, kGqa);
  if (gqa != nullptr && gqa->kv_layer) {
    // It reads the last layer with keys and values of its own, or with a window the one before.
    int64_t own = config.num_layers();
    while (config.find_block_config<GqaConfig>(own - 1, kGqa)->kv_layer) --own;
    if (*gqa->kv_layer != own - (gqa->window > 0 ? 2 : 1)) {
      return fmt::format("layer_types (layer {} reads keys and values of layer {})", layer,
                         *gqa->kv_layer);
    }
  }
  if (wants_experts && config.find_block_config<MoeConfig>(layer, kMoe) == nullptr) {
    return fmt::format("mlp_only_layers (layer {} has no experts)", layer);
  }
  return {};
}

}  // namespace

const GgufArchitecture& require_gguf_architecture(const ModelConfig& config) {
  if (config.num_layers() == 0) {
    throw Error(ErrorCode::kUnsupported, "--to gguf: llama.cpp cannot take a model without layers");
  }
  std::vector<std::string_view> known;
  for (const FamilyRow& row : kRows) {
    if (row.family == config.family) return *find_gguf_architecture(row.architecture);
    known.push_back(row.family);
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--to gguf: {} is not one of the families that are written as GGUF: {}",
                          config.family, fmt::join(known, ", ")));
}

void add_config_keys(const ModelConfig& config, GgufHeader& header) {
  KeyWriter(config, header).write_keys();
}

std::vector<float> rope_divisors(const ModelConfig& config) {
  for (const RopeSpec& rope : config.ropes) {
    const bool has_scale_alone = rope.position_scale.beta != 0.0;  // of queries that do not turn
    if (rope.config.type == RopeType::kProportional && !has_scale_alone)
      return proportional_divisors(rope);
  }
  if (config.ropes.empty()) return {};
  const RopeSpec& spec = config.ropes.front();
  if (spec.config.type != RopeType::kLlama3) return {};
  return llama3_divisors({.factor = spec.config.factor,
                          .high = spec.config.high_freq_factor,
                          .original = spec.config.original_max_position_embeddings},
                         spec.config.theta, spec.dim / 2);
}

std::string find_llama_cpp_fault(const ModelConfig& config) {
  const bool has_latent = find_first_block<MlaConfig>(config, kMla) != nullptr;
  const bool has_experts = find_first_block<MoeConfig>(config, kMoe) != nullptr;
  if (config.num_layers() > 0 && !has_latent &&
      find_first_block<GqaConfig>(config, kGqa) == nullptr) {
    return "layer_types (no layer of full attention)";
  }
  const GgufArchitecture& architecture = require_gguf_architecture(config);
  if (architecture.is_hybrid &&
      find_first_block<GatedDeltaNetConfig>(config, kGatedDeltaNet) == nullptr) {
    return "layer_types (no layer of linear attention)";
  }
  if (architecture.name.ends_with("moe") && !has_experts) {
    return "mlp_only_layers (no layer has experts)";
  }
  if (architecture.name == "llama4" && !has_experts) return "moe_layers (no layer has experts)";
  if (config.per_layer_inputs && config.per_layer_inputs->vocab_size != config.vocab_size) {
    return fmt::format("vocab_size_per_layer_input ({}; vocab_size is {})",
                       config.per_layer_inputs->vocab_size, config.vocab_size);
  }
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const bool wants_experts = has_experts && !has_latent && architecture.name != "llama4";
    std::string fault = find_llama_cpp_layer_fault(config, layer, wants_experts);
    if (!fault.empty()) return fault;
  }
  return has_latent && !has_experts ? "n_routed_experts (none)" : "";
}

std::string config_difference(const ModelConfig& a, const ModelConfig& b) {
  if (a.num_layers() != b.num_layers()) return "num_hidden_layers";
  if (a.vocab_size != b.vocab_size) return "vocab_size";
  if (a.hidden_size != b.hidden_size) return "hidden_size";
  if (a.max_position_embeddings != b.max_position_embeddings) return "max_position_embeddings";
  if (a.rms_norm_eps != b.rms_norm_eps) return "rms_norm_eps";
  if (a.tie_word_embeddings != b.tie_word_embeddings) return "tie_word_embeddings";
  if (!(a.logit_map == b.logit_map)) return "final_logit_softcapping";
  if (a.per_layer_inputs.has_value() != b.per_layer_inputs.has_value() ||
      (a.per_layer_inputs && a.per_layer_inputs->width != b.per_layer_inputs->width)) {
    return "hidden_size_per_layer_input";
  }
  if (a.norm_offset != b.norm_offset || a.embedding_scale != b.embedding_scale) return "model_type";
  for (int64_t layer = 0; layer < a.num_layers(); ++layer) {
    std::string difference = layer_difference(a, b, layer);
    if (!difference.empty()) return difference;
  }
  if (a.use_mtp && a.mtp_layer != b.mtp_layer) return "mtp_num_hidden_layers";
  return a.ropes == b.ropes || a.num_layers() == 0 ? "" : "rope_scaling";
}

}  // namespace strata::model
