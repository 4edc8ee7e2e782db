// SPDX-License-Identifier: Apache-2.0
// Source: llama.cpp's conversion/gemma.py, src/models/gemma3.cpp and src/models/gemma4.cpp.
#include "checkpoint/gguf/gemma_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace strata {
namespace {

constexpr int64_t kPattern = 6;  // of layers that slide, where the file does not say

void add_linear_rope_scaling(ConfigMembers& members) {
  const double factor = members.read_number("rope.scaling.factor", 1.0);
  const std::string type =
      members.model().keys().text(members.use_key("rope.scaling.type"), "linear");
  if (type == "linear" && factor != 1.0) {
    members.set("rope_scaling", fmt::format(R"({{"rope_type": "linear", "factor": {}}})",
                                            members.number_text(factor)));
  } else if (type != "linear" && type != "none") {
    members.refuse("rope.scaling.type",
                   fmt::format("got '{}', supported are linear and none", type));
  }
}

}  // namespace

void add_gemma3_members(ConfigMembers& members) {
  const int64_t hidden = members.read_integer("embedding_length");
  constexpr int64_t kLayersOf27B = 62;
  members.set_integer("query_pre_attn_scalar", members.num_layers() == kLayersOf27B
                                                   ? hidden / members.heads()
                                                   : members.head_dim());
  members.set_integer("sliding_window", members.read_integer("attention.sliding_window"));
  members.set("layer_types", members.layer_types(kPattern));
  members.set_number("rope_theta", members.read_number("rope.freq_base", 1e6));
  members.set_number("rope_local_base_freq", members.read_number("rope.freq_base_swa", 1e4));
  add_linear_rope_scaling(members);
  members.check_whole_head_rotates("rope.dimension_count", members.head_dim());
}

namespace {

// The one value that layers with a window have, or those without; nothing where there are none.
std::optional<int64_t> value_of_kind(ConfigMembers& members, std::string_view name,
                                     const std::vector<int64_t>& values,
                                     const std::vector<bool>& sliding, bool of_sliding) {
  std::optional<int64_t> found;
  for (size_t i = 0; i < values.size(); ++i) {
    if (sliding[i] != of_sliding) continue;
    if (found && *found != values[i]) {
      members.refuse(name, fmt::format("got {} and {} of layers that {}, which is not supported",
                                       *found, values[i], of_sliding ? "slide" : "do not slide"));
    }
    found = values[i];
  }
  return found;
}

// Whether full layers take their keys as values too: those that have both say not.
bool keys_are_values(const ConfigMembers& members, const std::vector<bool>& sliding) {
  for (int64_t layer = 0; layer < members.num_layers(); ++layer) {
    if (!sliding[static_cast<size_t>(layer)] && members.layer_has(layer, "attn_k.weight")) {
      return !members.layer_has(layer, "attn_v.weight");
    }
  }
  return false;
}

void check_value_width(ConfigMembers& members, std::string_view name, int64_t width) {
  const int64_t value_width = members.read_integer(name, width);
  if (value_width == width) return;
  members.refuse(name,
                 fmt::format("got {}, only that of keys, {}, is supported", value_width, width));
}

void add_gemma4_heads(ConfigMembers& members, const std::vector<bool>& sliding) {
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  const std::vector<int64_t> kv_heads = members.read_layer_integers(kKvHeads);
  const int64_t full = value_of_kind(members, kKvHeads, kv_heads, sliding, false).value();
  const int64_t usual = value_of_kind(members, kKvHeads, kv_heads, sliding, true).value_or(full);
  const bool is_shared = keys_are_values(members, sliding);
  if (!is_shared && full != usual) {
    members.refuse(kKvHeads, fmt::format("got {} in layers that slide and {} in others, which is "
                                         "supported where keys are values alone",
                                         usual, full));
  }
  const int64_t full_dim = members.head_dim();
  const int64_t dim = members.read_integer("attention.key_length_swa", full_dim);
  check_value_width(members, "attention.value_length", full_dim);
  check_value_width(members, "attention.value_length_swa", dim);
  members.check_whole_head_rotates("rope.dimension_count", full_dim);
  members.check_whole_head_rotates("rope.dimension_count_swa", dim);
  members.set_integer("num_attention_heads", members.heads());
  members.set_integer("num_key_value_heads", usual);
  members.set_integer("head_dim", dim);
  members.set_integer("global_head_dim", full_dim);
  members.set_boolean("attention_k_eq_v", is_shared);
  if (is_shared) members.set_integer("num_global_key_value_heads", full);
}

// The last layers read keys and values of others; their MLPs may be twice as wide.
void add_gemma4_shared_layers(ConfigMembers& members) {
  constexpr std::string_view kShared = "attention.shared_kv_layers", kWidth = "feed_forward_length";
  const int64_t num_shared = members.read_integer(kShared, 0);
  if (num_shared < 0 || num_shared >= members.num_layers()) {
    members.model().keys().fail(
        members.use_key(kShared),
        fmt::format("got {}, want 0 to {}", num_shared, members.num_layers() - 1));
  }
  const std::vector<int64_t> widths = members.read_layer_integers(kWidth);
  const bool is_double = widths.back() != widths.front();
  for (size_t i = 0; i < widths.size(); ++i) {
    const bool is_shared = std::ssize(widths) - static_cast<int64_t>(i) <= num_shared;
    const int64_t factor = is_double && is_shared ? 2 : 1;
    if (widths[i] % factor != 0 || widths[i] / factor != widths.front()) {
      members.refuse(kWidth, fmt::format("got {} of layer {} and {} of the first one; supported is "
                                         "one width, which the last {} layers may have twice",
                                         widths[i], i, widths.front(), num_shared));
    }
  }
  members.set_integer("num_kv_shared_layers", num_shared);
  members.set_integer("intermediate_size", widths.front());
  members.set_boolean("use_double_wide_mlp", is_double);
}

void add_gemma4_experts(ConfigMembers& members) {
  const bool has_experts = members.read_integer("expert_count", 0) > 0;
  members.set_boolean("enable_moe_block", has_experts);
  if (!has_experts) {
    static_cast<void>(members.has_key("expert_used_count"));
    static_cast<void>(members.has_key("expert_feed_forward_length"));
    return;
  }
  members.set_integer("num_experts", members.read_integer("expert_count"));
  members.set_integer("top_k_experts", members.read_integer("expert_used_count"));
  members.set_integer("moe_intermediate_size", members.read_integer("expert_feed_forward_length"));
}

void add_gemma4_per_layer_inputs(ConfigMembers& members) {
  constexpr std::string_view kWidth = "embedding_length_per_layer_input";
  const int64_t width = members.read_integer(kWidth, 0);
  members.set_integer("hidden_size_per_layer_input", width);
  if (width == 0) return;
  const GgufTensor* embedding = members.model().find("per_layer_token_embd.weight");
  if (embedding == nullptr) {
    members.refuse(kWidth, "the tensor 'per_layer_token_embd.weight' is missing");
  }
  members.set_integer("vocab_size_per_layer_input", embedding->rows());
}

// How much of a head turns in full layers: of pairs that do not, the divisors are 1e30.
double read_partial_rotary_factor(ConfigMembers& members) {
  const std::vector<float> divisors = members.read_rope_divisors(members.head_dim());
  constexpr float kStill = 1e29f;
  const auto first =
      std::find_if(divisors.begin(), divisors.end(), [](float d) { return d != 1.0f; });
  if (!std::all_of(first, divisors.end(), [](float d) { return d >= kStill; })) {
    members.refuse("rope.dimension_count",
                   "rope_freqs.weight is no list of ones and, behind them, 1e30");
  }
  const auto turning = static_cast<double>(first - divisors.begin());
  const auto pairs = static_cast<double>(divisors.size());
  const double factor = turning / pairs;  // of which so many pairs are made by rounding down
  return std::floor(factor * pairs) < turning ? std::nextafter(factor, 1.0) : factor;
}

void add_gemma4_ropes(ConfigMembers& members) {
  constexpr std::string_view kType = "rope.scaling.type";
  const std::string type = members.model().keys().text(members.use_key(kType), "none");
  if ((type != "none" && type != "linear") ||
      members.read_number("rope.scaling.factor", 1.0) != 1.0) {
    members.refuse(kType, fmt::format("got '{}', only none is supported", type));
  }
  members.set("rope_parameters",
              fmt::format(R"({{"full_attention": {{"rope_type": "proportional", "rope_theta": {}, )"
                          R"("partial_rotary_factor": {}}}, "sliding_attention": {{"rope_type": )"
                          R"("default", "rope_theta": {}}}}})",
                          members.number_text(members.read_number("rope.freq_base", 1e4)),
                          members.number_text(read_partial_rotary_factor(members)),
                          members.number_text(members.read_number("rope.freq_base_swa", 1e4))));
}

}  // namespace

void add_gemma4_members(ConfigMembers& members) {
  if (members.num_layers() == 0) members.refuse("block_count", "got 0, want at least 1");
  const std::vector<bool> sliding = members.sliding_layers(kPattern);
  if (sliding[static_cast<size_t>(members.num_layers()) - 1]) {
    members.refuse("attention.sliding_window_pattern",
                   "the last layer slides, which those of this model do not");
  }
  members.set("layer_types", members.layer_types(kPattern));
  members.set_integer("sliding_window", members.read_integer("attention.sliding_window"));
  add_gemma4_heads(members, sliding);
  add_gemma4_shared_layers(members);
  add_gemma4_experts(members);
  add_gemma4_per_layer_inputs(members);
  add_gemma4_ropes(members);
  const double cap = members.read_number("final_logit_softcapping", 0.0);
  members.set("final_logit_softcapping", cap == 0.0 ? "null" : members.number_text(cap));
}

}  // namespace strata
