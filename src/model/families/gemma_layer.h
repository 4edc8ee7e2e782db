// SPDX-License-Identifier: Apache-2.0
// What Gemma 1, 2 and 3 have in common.
#pragma once
#include "model/families/family.h"

namespace strata::model {

// A layer with norms of 1 + w before and behind each of its two branches.
LayerConfig make_gemma_layer(const ModelConfig& config, const GqaConfig& attention,
                             const Block& mlp);

// Norms of 1 + w, and an embedding times the root of its width, rounded to the compute type.
void set_gemma_defaults(ModelConfig& config);

// The gated MLP with the tanh form of GELU.
Block make_gemma_mlp(const DecoderKeys& keys);

}  // namespace strata::model
