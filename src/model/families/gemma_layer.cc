// SPDX-License-Identifier: Apache-2.0
#include "model/families/gemma_layer.h"

#include <cmath>

#include "model/blocks/gated_mlp.h"
#include "model/connectors/post_norm_add.h"

namespace strata::model {

LayerConfig make_gemma_layer(const ModelConfig& config, const GqaConfig& attention,
                             const Block& mlp, std::string_view scale) {
  const auto norms = [&](std::string_view before, std::string_view after, std::string_view factor) {
    return Connector(kPostNormAdd, PostNormAddConfig{.before = before,
                                                     .after = after,
                                                     .scale = factor,
                                                     .eps = config.rms_norm_eps,
                                                     .norm_offset = config.norm_offset});
  };
  return {
      {norms("input_layernorm.weight", "post_attention_layernorm.weight", {}),
       Block(kGqa, attention)},
      {norms("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight", scale), mlp}};
}

void set_gemma_defaults(ModelConfig& config) {
  config.norm_offset = 1.0f;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.rounds_embedding_scale = true;
}

Block make_gemma_mlp(const DecoderKeys& keys) {
  return {kGatedMlp, GatedMlpConfig{.width = keys.intermediate_size,
                                    .activation = ops::Activation::kGeluTanh}};
}

}  // namespace strata::model
