// SPDX-License-Identifier: Apache-2.0
// Keys of a GGUF file as the config.json of the same model. Source: llama.cpp's
// convert_hf_to_gguf.py and llama-model.cpp (load_hparams).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/gguf/config_members.h"
#include "checkpoint/gguf/gemma_config.h"
#include "checkpoint/gguf/llama3_scaling.h"
#include "checkpoint/gguf/llama4_config.h"
#include "checkpoint/gguf/tokenizer.h"
#include "text/json_reader.h"

namespace strata {
namespace {

class ConfigWriter : ConfigMembers {
 public:
  using ConfigMembers::ConfigMembers;

  std::string build_config_json() {
    add_common_members();
    if (row().name == "llama") add_llama_members();
    if (row().name == "llama4") add_llama4_members(*this);
    if (row().name == "qwen3moe") add_expert_members();
    if (row().is_hybrid) add_hybrid_members();
    if (row().name == "gemma3") add_gemma3_members(*this);
    if (row().name == "gemma4") {
      add_gemma4_members(*this);
    } else {
      add_width_and_heads();
    }
    if (row().has_mla) add_mla_and_expert_members();
    if (row().has_sinks) add_gpt_oss_members();
    if (!is_gemma() && !row().is_hybrid) add_rope_members();
    refuse_unsupported_keys();
    mark_ignored_keys_as_used();
    add_special_token_ids();
    add_unused_keys();
    return json();
  }

 private:
  [[nodiscard]] bool is_gemma() const { return row().name == "gemma3" || row().name == "gemma4"; }

  void add_common_members() {
    set("architectures", fmt::format("[{}]", text::json_quote(row().model_class)));
    set("model_type", text::json_quote(row().model_type));
    set_integer("vocab_size", read_integer("vocab_size", require_embedding().rows()));
    set_integer("hidden_size", read_integer("embedding_length"));
    set_integer("num_hidden_layers", num_layers());
    set_integer("max_position_embeddings", read_integer("context_length"));
    set_number("rms_norm_eps", read_number("attention.layer_norm_rms_epsilon"));
    set_boolean("tie_word_embeddings", !has_tensor("output.weight"));
    set(is_gemma() ? "hidden_activation" : "hidden_act",
        is_gemma() ? "\"gelu_pytorch_tanh\"" : "\"silu\"");
    if (row().name != "qwen2") set_boolean("attention_bias", layer_has(0, "attn_q.bias"));
    set("torch_dtype", all_f32() ? "\"float32\"" : "\"bfloat16\"");
  }

  [[nodiscard]] const GgufTensor& require_embedding() const {
    if (const GgufTensor* tensor = model().find("token_embd.weight")) return *tensor;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor 'token_embd.weight' is missing: no model, or a part of one",
                            model().keys().where()));
  }

  void add_width_and_heads() {
    const int64_t expert_width = read_integer("expert_feed_forward_length", 1);
    const bool is_of_experts = row().name == "qwen35moe" || row().name == "llama4";
    const int64_t width =
        is_of_experts || row().has_sinks ? expert_width : feed_forward_width(expert_width);
    set_integer("intermediate_size", width);
    add_head_members();
  }

  void add_head_members() {
    set_integer("num_attention_heads", heads());
    const int64_t kv = read_integer("attention.head_count_kv", heads());
    set_integer("num_key_value_heads", row().has_mla ? heads() : kv);
    if (!row().has_mla) set_integer("head_dim", head_dim());
    const int64_t value_dim = read_integer("attention.value_length", head_dim());
    if (!row().has_mla && value_dim != head_dim()) {
      refuse("attention.value_length",
             fmt::format("got {}, only that of keys, {}, is supported", value_dim, head_dim()));
    }
  }

  // One width, or one by layer of which layers of experts may have none.
  int64_t feed_forward_width(int64_t fallback) {
    const std::string name = use_key("feed_forward_length");
    int64_t width = 0;
    for (const int64_t value : model().keys().integers(name)) {
      if (value == 0) continue;
      if (width != 0 && value != width)
        refuse("feed_forward_length", "differs by layer, which is not supported");
      width = value;
    }
    if (width == 0 && !has_key("expert_feed_forward_length")) {
      model().keys().fail(name, "got nothing, want a whole number");
    }
    return width == 0 ? fallback : width;
  }

  [[nodiscard]] bool all_f32() const {
    return std::all_of(model().tensors().begin(), model().tensors().end(), [](const auto& tensor) {
      return tensor.info->dims.size() < 2 || tensor.info->type->name == "F32";
    });
  }

  void add_llama_members() {
    set_boolean("mlp_bias", layer_has(0, "ffn_gate.bias"));
    if (read_integer("expert_count", 0) > 0) refuse("expert_count", "Mixtral is not supported");
    static_cast<void>(read_integer("expert_used_count", 0));
  }

  void add_expert_sizes() {
    set_integer("num_experts", read_integer("expert_count"));
    set_integer("num_experts_per_tok", read_integer("expert_used_count"));
    set_integer("moe_intermediate_size", read_integer("expert_feed_forward_length"));
  }

  // The layers that have experts are those whose tensors are there.
  void add_expert_members() {
    add_expert_sizes();
    set("norm_topk_prob", "true");
    set("mlp_only_layers", dense_layers());
  }

  [[nodiscard]] std::string dense_layers() const {
    std::vector<int64_t> dense;
    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      if (!layer_has(layer, "ffn_gate_inp.weight")) dense.push_back(layer);
    }
    return fmt::format("[{}]", fmt::join(dense, ", "));
  }

  void add_hybrid_members() {
    add_delta_net_members();
    static_cast<void>(read_integer("full_attention_interval", 4));  // the tensors say it
    set("layer_types", hybrid_layer_types());
    set_integer("mtp_num_hidden_layers", read_integer("nextn_predict_layers", 0));
    if (row().name == "qwen35moe") {
      add_expert_sizes();
      set_integer("shared_expert_intermediate_size",
                  read_integer("expert_shared_feed_forward_length"));
    }
    add_partial_rope_members();
  }

  void add_delta_net_members() {
    const int64_t values = read_integer("ssm.time_step_rank");
    if (values < 1) model().keys().fail(use_key("ssm.time_step_rank"), "want at least 1");
    set_integer("linear_conv_kernel_dim", read_integer("ssm.conv_kernel"));
    set_integer("linear_key_head_dim", read_integer("ssm.state_size"));
    set_integer("linear_num_key_heads", read_integer("ssm.group_count"));
    set_integer("linear_num_value_heads", values);
    set_integer("linear_value_head_dim", read_integer("ssm.inner_size") / values);
  }

  [[nodiscard]] std::string hybrid_layer_types() const {
    std::vector<std::string> types;
    for (int64_t layer = 0; layer < num_layers(); ++layer) {
      const bool is_delta = layer_has(layer, "ssm_out.weight");
      types.emplace_back(is_delta ? "\"linear_attention\"" : "\"full_attention\"");
    }
    return fmt::format("[{}]", fmt::join(types, ", "));
  }

  void add_partial_rope_members() {
    const auto dim = static_cast<double>(head_dim());
    const double part = static_cast<double>(read_integer("rope.dimension_count")) / dim;
    const std::string scaling = rope_scaling_members();
    set("rope_parameters",
        fmt::format(R"({{"rope_theta": {}, "partial_rotary_factor": {}, {}}})",
                    number_text(read_number("rope.freq_base", 10000.0)), number_text(part),
                    scaling.empty() ? R"("rope_type": "default")" : scaling));
    static_cast<void>(
        has_key("rope.dimension_sections"));  // text has the same position on all axes
  }

  // Its SwiGLU's limit and alpha are the architecture's, as are the layers that slide.
  void add_gpt_oss_members() {
    constexpr int64_t kPattern = 2;
    set_integer("num_local_experts", read_integer("expert_count"));
    set_integer("num_experts_per_tok", read_integer("expert_used_count"));
    set_integer("sliding_window", read_integer("attention.sliding_window"));
    set("layer_types", layer_types(kPattern));
    static_cast<void>(has_key("feed_forward_length"));
  }

  void add_mla_and_expert_members() {
    add_mla_members();
    set_integer("num_nextn_predict_layers", 0);
    set_integer("first_k_dense_replace", read_integer("leading_dense_block_count", 0));
    if (has_key("expert_count")) add_routed_expert_members();
  }

  void add_mla_members() {
    const int64_t rope = read_integer("rope.dimension_count");
    const int64_t key_dim =
        read_integer("attention.key_length_mla", read_integer("attention.key_length"));
    const bool has_q_rank = has_key("attention.q_lora_rank");
    set("q_lora_rank",
        has_q_rank ? fmt::format("{}", read_integer("attention.q_lora_rank")) : "null");
    set_integer("kv_lora_rank", read_integer("attention.kv_lora_rank"));
    set_integer("qk_nope_head_dim", key_dim - rope);
    set_integer("qk_rope_head_dim", rope);
    set_integer("v_head_dim",
                read_integer("attention.value_length_mla", read_integer("attention.value_length")));
    set("rope_interleave", "true");
  }

  void add_routed_expert_members() {
    set_integer("n_routed_experts", read_integer("expert_count"));
    set_integer("num_experts_per_tok", read_integer("expert_used_count"));
    set_integer("moe_intermediate_size", read_integer("expert_feed_forward_length"));
    set_integer("n_shared_experts", read_integer("expert_shared_count", 0));
    set_integer("n_group", read_integer("expert_group_count", 1));
    set_integer("topk_group", read_integer("expert_group_used_count", 1));
    set_number("routed_scaling_factor", read_number("expert_weights_scale", 1.0));
    set_boolean("norm_topk_prob", model().keys().boolean(use_key("expert_weights_norm"), false));
    check_sigmoid_gating();
    set("scoring_func", "\"sigmoid\"");
  }

  void check_sigmoid_gating() {
    constexpr int64_t kSigmoid = 2;
    const int64_t gating = read_integer("expert_gating_func", 1);
    if (gating == kSigmoid) return;
    refuse("expert_gating_func",
           fmt::format("got {}, only 2 (sigmoid: DeepSeek-V3 and what shares its router) is "
                       "supported",
                       gating));
  }

  void add_rope_members() {
    check_whole_head_rotates("rope.dimension_count",
                             row().has_mla ? read_integer("rope.dimension_count") : head_dim());
    set_number("rope_theta", read_number("rope.freq_base", 10000.0));
    const std::string scaling = rope_scaling_members();
    if (!scaling.empty()) set("rope_scaling", "{" + scaling + "}");
  }

  // The members of a scaling, or nothing. No type is linear with a factor, which may be 1.
  std::string rope_scaling_members() {
    const std::string type = model().keys().text(use_key("rope.scaling.type"), "linear");
    const double factor = read_number("rope.scaling.factor", read_number("rope.scale_linear", 1.0));
    if (has_tensor("rope_freqs.weight")) {
      if (type == "yarn" || factor != 1.0) refuse("rope.scaling.type", "both this and rope_freqs");
      return read_llama3_members();
    }
    if (type == "yarn") return yarn_members(factor);
    if (type != "linear" && type != "none") {
      refuse("rope.scaling.type",
             fmt::format("got '{}', supported are none, linear and yarn", type));
    }
    // A config.json of gpt-oss that says nothing has YaRN.
    if (type == "none" || factor == 1.0) return row().has_sinks ? R"("rope_type": "default")" : "";
    return fmt::format(R"("rope_type": "linear", "factor": {})", number_text(factor));
  }

  std::string yarn_members(double factor) {
    std::string json = fmt::format(R"("rope_type": "yarn", "factor": {})", number_text(factor));
    const auto add = [&](std::string_view name, double value) {
      json += fmt::format(R"(, "{}": {})", name, number_text(value));
    };
    const int64_t original =
        read_integer("rope.scaling.original_context_length", read_integer("context_length"));
    add("original_max_position_embeddings", static_cast<double>(original));
    add("beta_fast", read_number("rope.scaling.yarn_beta_fast", 32.0));
    add("beta_slow", read_number("rope.scaling.yarn_beta_slow", 1.0));
    if (read_number("rope.scaling.yarn_ext_factor", 1.0) != 1.0) {
      refuse("rope.scaling.yarn_ext_factor", "only 1 is supported");
    }
    // No key says it: llama.cpp rounds the ramp's ends, and gpt-oss does not.
    if (row().has_sinks) json += R"(, "truncate": false)";
    return json + yarn_attention_members(factor);
  }

  // Behind other members; nothing where attention's scale is that of the factor.
  std::string yarn_attention_members(double factor) {
    const double attention =
        read_number("rope.scaling.yarn_attn_factor", read_number("rope.scaling.attn_factor", 1.0));
    if (has_key("rope.scaling.yarn_log_multiplier")) {
      const std::string mscale = number_text(read_yarn_mscale());
      return fmt::format(R"(, "mscale": {}, "mscale_all_dim": {})", mscale, mscale);
    }
    if (attention == 1.0) return {};
    return fmt::format(R"(, "attention_factor": {})",
                       number_text(attention * (0.1 * std::log(factor) + 1.0)));
  }

  // The key has a tenth of mscale_all_dim, which mscale is equal to in all models of this kind.
  double read_yarn_mscale() {
    const double log_multiplier = read_number("rope.scaling.yarn_log_multiplier");
    return std::stod(fmt::format("{:.6g}", row().has_mla ? log_multiplier / 0.1 : log_multiplier));
  }

  // Llama 3.x: not keys but a table of divisors.
  std::string read_llama3_members() {
    const std::vector<float> divisors = read_rope_divisors(head_dim());
    if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0f; })) return {};
    const auto found = find_llama3_scaling(divisors, read_number("rope.freq_base", 10000.0));
    if (!found) {
      refuse("rope.scaling.type",
             "rope_freqs.weight is no table of Llama 3's scaling, and no other is supported");
    }
    return fmt::format(R"("rope_type": "llama3", "factor": {}, "low_freq_factor": 1.0, )"
                       R"("high_freq_factor": {}, "original_max_position_embeddings": {})",
                       number_text(found->factor), number_text(found->high),
                       number_text(found->original));
  }

  void refuse_unsupported_keys() {
    if (row().name != "gemma4" && has_key("final_logit_softcapping") &&
        read_number("final_logit_softcapping") != 0.0) {
      refuse("final_logit_softcapping", "this model is not supported");
    }
    for (const char* name :
         {"attn_logit_softcapping", "attention.clamp_kqv", "attention.max_alibi_bias",
          "attention.temperature_scale", "residual_scale", "embedding_scale"}) {
      if (has_key(name) && read_number(name) != 0.0) refuse(name, "this model is not supported");
    }
    for (const char* name : {"logit_scale", "attention.scale"}) {
      const double value = has_key(name) ? read_number(name) : 0.0;
      if (value != 0.0 && value != 1.0) refuse(name, "this model is not supported");
    }
    if (row().name != "deepseek2" && read_number("expert_weights_scale", 1.0) != 1.0 &&
        read_number("expert_weights_scale") != 0.0) {
      refuse("expert_weights_scale", "only 1 is supported");
    }
    if (!is_gemma() && !row().has_sinks && has_key("attention.sliding_window") &&
        read_integer("attention.sliding_window") > 0) {
      refuse("attention.sliding_window", "a window of this architecture is not supported");
    }
  }

  // What changes nothing, or is read elsewhere.
  void mark_ignored_keys_as_used() {
    for (const char* name : {"nextn_predict_layers", "block_count", "rope.scaling.finetuned",
                             "interleave_moe_layer_step", "expert_gating_func"}) {
      static_cast<void>(use_key(name));
    }
  }

  void add_special_token_ids() {
    const GgufKeys& keys = model().keys();
    const int64_t bos = gguf_token_id(keys, "bos");
    if (bos >= 0) set_integer("bos_token_id", bos);
    const std::vector<int64_t> ends = gguf_end_token_ids(keys);
    if (ends.size() == 1) set_integer("eos_token_id", ends.front());
    if (ends.size() > 1) set("eos_token_id", fmt::format("[{}]", fmt::join(ends, ", ")));
  }
};

}  // namespace

std::string gguf_config(const GgufModel& model) { return ConfigWriter(model).build_config_json(); }

}  // namespace strata
