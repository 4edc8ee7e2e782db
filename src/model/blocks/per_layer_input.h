// SPDX-License-Identifier: Apache-2.0
// A layer's own input next to its state n: out = W_p (act(W_g n) * e), where e is the layer's part
// of what model/per_layer_inputs.h makes. Source: HF modeling_gemma4.py, Gemma4TextDecoderLayer.
#pragma once
#include "model/blocks/block.h"
#include "ops/gated.h"

namespace strata::model {

struct PerLayerInputConfig {
  int64_t width = 0;  // of e
  ops::Activation activation = ops::Activation::kGeluTanh;
  friend bool operator==(const PerLayerInputConfig&, const PerLayerInputConfig&) = default;
};

extern const BlockOps kPerLayerInput;

}  // namespace strata::model
