// SPDX-License-Identifier: Apache-2.0
// The pre-norm residual: out = x + block(norm(x)). The add is the epilogue of the block's last
// product. Some models multiply the branch by a number (HF modeling_granite.py,
// GraniteDecoderLayer): it is then made in fp32 by itself, and multiplied and added there. The
// residual is fp32 between the sublayers of a layer and rounded to the compute type at the layer's
// boundary. Source: HF modeling_llama.py, LlamaDecoderLayer.
#pragma once
#include <string_view>

#include "model/connectors/connector.h"

namespace strata::model {

struct PreNormAddConfig {
  std::string_view norm;  // the norm's name below the layer
  double eps = 1e-6;
  float norm_offset = 0.0f;   // the multiplier is this plus the weight
  float branch_scale = 1.0f;  // what the block's output is multiplied by
  friend bool operator==(const PreNormAddConfig&, const PreNormAddConfig&) = default;
};

extern const ConnectorOps kPreNormAdd;

}  // namespace strata::model
