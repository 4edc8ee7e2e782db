// SPDX-License-Identifier: Apache-2.0
// What the generations of Gemma have in common.
#pragma once
#include "model/families/family.h"

namespace strata::model {

// A layer with norms before and behind each of its two branches, as config.norm_offset has them,
// and the name of the number that its state is multiplied by at last, or none.
LayerConfig make_gemma_layer(const ModelConfig& config, const GqaConfig& attention,
                             const Block& mlp, std::string_view scale = {});

// Norms of 1 + w, and an embedding times the root of its width, rounded to the compute type.
void set_gemma_defaults(ModelConfig& config);

// The gated MLP with the tanh form of GELU.
Block make_gemma_mlp(const DecoderKeys& keys);

}  // namespace strata::model
