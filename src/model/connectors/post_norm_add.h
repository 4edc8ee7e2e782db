// SPDX-License-Identifier: Apache-2.0
// The residual with a norm on either side of the branch: out = x +
// norm_after(block(norm_before(x))), or behind it alone: x + norm_after(block(x)), where the block
// reads x rounded to the compute type. The branch is rounded to it before its norm, which is
// computed and added in fp32. The sum may be times a number of the layer's own (Gemma 4). Sources:
// HF modeling_gemma3.py, Gemma3DecoderLayer; modeling_olmo2.py, Olmo2DecoderLayer;
// modeling_gemma4.py, Gemma4TextDecoderLayer.
#pragma once
#include <string_view>

#include "model/connectors/connector.h"

namespace strata::model {

struct PostNormAddConfig {
  std::string_view before = {};  // the norms' names below the layer; empty: none
  std::string_view after;
  std::string_view scale = {};  // the name of a number that the sum is multiplied by; empty: none
  double eps = 1e-6;
  float norm_offset = 0.0f;  // the norms' multiplier is this plus the weight
  friend bool operator==(const PostNormAddConfig&, const PostNormAddConfig&) = default;
};

extern const ConnectorOps kPostNormAdd;

}  // namespace strata::model
