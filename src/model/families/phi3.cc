// SPDX-License-Identifier: Apache-2.0
// Phi-3, 3.5 and 4: Llama's layers, with q, k and v in one matrix, and gate and up in another; of
// 128K models RoPE has two tables (longrope), one of which a run has.
// Sources: HF modeling_phi3.py, configuration_phi3.py, as all defaults here.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "model/blocks/attention_config.h"
#include "model/blocks/gated_mlp.h"
#include "model/blocks/gqa.h"
#include "model/families/family.h"

namespace strata::model {
namespace {

constexpr std::string_view kArchitectures[] = {"Phi3ForCausalLM"};
constexpr std::string_view kTypes[] = {"phi3"};
constexpr std::string_view kRead[] = {"sliding_window"};
constexpr std::string_view kInert[] = {"resid_pdrop", "embd_pdrop", "auto_map"};
constexpr NeutralKey kNeutral[] = {{"attention_bias", "false"}};

// The original length of models without the key; one inside the scaling alone does not count.
constexpr int64_t kOriginalLength = 4096;
constexpr std::string_view kOriginalKey = "original_max_position_embeddings";

std::vector<std::string> find_phi3_warnings(const ConfigObject& object) {
  if (object.has(kOriginalKey)) return {};
  for (const std::string_view form : {"rope_parameters", "rope_scaling"}) {
    const auto scaling = object.object(form);
    if (!scaling || scaling->number(kOriginalKey, kOriginalLength) == kOriginalLength) continue;
    return {fmt::format(
        "{}: key '{}': {} does not count here, and {} does, as in transformers: of "
        "Phi-3 the key stands next to {}",
        scaling->where(), kOriginalKey, scaling->json(kOriginalKey), kOriginalLength, form)};
  }
  return {};
}

// One for each pair that is rotated.
void check_num_factors(const ConfigObject& object, const RopeConfig& rope, int64_t rotary_dim) {
  if (rope.type != RopeType::kLongrope) return;
  const std::pair<const char*, const std::vector<double>&> tables[] = {
      {"short_factor", rope.short_factors}, {"long_factor", rope.long_factors}};
  for (const auto& [key, factors] : tables) {
    if (std::ssize(factors) == rotary_dim / 2) continue;
    object.fail(
        fmt::format("key '{}' of RoPE: got {} numbers, want one for each of the {} pairs "
                    "of columns that are rotated",
                    key, factors.size(), rotary_dim / 2));
  }
}

void read_phi3(const ConfigObject& object, const DecoderKeys& keys, ModelConfig& config) {
  const int64_t head_dim = object.integer("head_dim", config.hidden_size / keys.num_heads);
  const RopeConfig rope = read_rope(
      object, {.is_partial = true, .has_longrope = true, .original_length = kOriginalLength});
  const int64_t rotary_dim = rotary_width(rope, head_dim);
  check_num_factors(object, rope, rotary_dim);
  const Block attention(
      kGqa, GqaConfig{.num_heads = keys.num_heads,
                      .num_kv_heads = object.integer("num_key_value_heads", keys.num_heads),
                      .head_dim = head_dim,
                      .scale = plain_attention_scale(head_dim),
                      .fused_qkv = true,
                      .window = read_named_window(object),
                      .rope = config.ensure_rope({rope, rotary_dim}),
                      .rotary_dim = rotary_dim});
  const Block mlp(kGatedMlp,
                  GatedMlpConfig{.width = keys.intermediate_size, .fused_gate_up = true});
  config.layers.assign(static_cast<size_t>(keys.num_layers),
                       make_pre_norm_layer(config, attention, mlp));
  config.stores_as_one = true;
}

}  // namespace

extern const Family kPhi3Family = {.name = "phi3",
                                   .architectures = kArchitectures,
                                   .model_types = kTypes,
                                   .read_keys = kRead,
                                   .inert_keys = kInert,
                                   .neutral_keys = kNeutral,
                                   .defaults = {.vocab_size = 32064,
                                                .hidden_size = 3072,
                                                .intermediate_size = 8192,
                                                .num_layers = 32,
                                                .num_heads = 32,
                                                .max_position_embeddings = 4096,
                                                .rms_norm_eps = 1e-5},
                                   .find_warnings = find_phi3_warnings,
                                   .read = read_phi3};

}  // namespace strata::model
