// SPDX-License-Identifier: Apache-2.0
// Sources: HF modeling_deepseek_v3.py, configuration_deepseek_v3.py.
#include "model/families/deepseek_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "model/blocks/attention_config.h"
#include "model/blocks/mla.h"

namespace strata::model {
namespace {

// Source: HF modeling_deepseek_v3.py, yarn_apply_mscale.
float attention_scale(const RopeConfig& rope, int64_t head_dim) {
  if (rope.type == RopeType::kDefault || rope.mscale_all_dim == 0.0) {
    return plain_attention_scale(head_dim);
  }
  const double plain = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const double m = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return static_cast<float>(plain * m * m);
}

// A derived size that files may repeat.
void check_derived_size(const ConfigObject& object, std::string_view key, int64_t value) {
  if (object.has(key) && object.integer(key) != value) {
    object.fail(
        fmt::format("key '{}': got {}, the other sizes say {}", key, object.json(key), value));
  }
}

}  // namespace

Block read_deepseek_attention(const ConfigObject& object, const DeepseekAttentionDefaults& defaults,
                              const DecoderKeys& keys, ModelConfig& config) {
  constexpr int64_t kKvLoraRank = 512;
  constexpr int64_t kRopeDim = 64;
  MlaConfig mla;
  mla.num_heads = keys.num_heads;
  mla.bias = keys.attention_bias;
  // An explicit null says that queries have no latent; an absent key, that its rank is the default.
  if (object.is_null("q_lora_rank")) {
    mla.q_lora_rank = 0;
  } else {
    mla.q_lora_rank = read_size(object, "q_lora_rank", defaults.q_lora_rank);
  }
  mla.kv_lora_rank = read_size(object, "kv_lora_rank", kKvLoraRank);
  mla.nope_dim = read_size(object, "qk_nope_head_dim", defaults.nope_dim);
  mla.rope_dim = read_size(object, "qk_rope_head_dim", kRopeDim);
  mla.value_dim = read_size(object, "v_head_dim", defaults.value_dim);
  mla.rope_interleave = object.boolean("rope_interleave", true);
  const RopeConfig rope = read_rope(object);
  mla.scale = attention_scale(rope, mla.head_dim());
  check_derived_size(object, "num_key_value_heads", keys.num_heads);
  check_derived_size(object, "head_dim", mla.rope_dim);  // as transformers writes it
  check_derived_size(object, "qk_head_dim", mla.head_dim());
  mla.rope = config.ensure_rope({rope, mla.rope_dim});
  return {kMla, mla};
}

}  // namespace strata::model
