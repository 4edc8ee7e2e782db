// SPDX-License-Identifier: Apache-2.0
// The residual with a norm on either side of the branch: out = x +
// norm_after(block(norm_before(x))). The branch is rounded to the compute type before its norm,
// which is computed and added in fp32. Source: HF modeling_gemma3.py, Gemma3DecoderLayer.
#pragma once
#include <string_view>

#include "model/connectors/connector.h"

namespace strata::model {

struct PostNormAddConfig {
  std::string_view before;  // the norms' names below the layer
  std::string_view after;
  double eps = 1e-6;
  float norm_offset = 0.0f;  // their multiplier is this plus the weight
  friend bool operator==(const PostNormAddConfig&, const PostNormAddConfig&) = default;
};

extern const ConnectorOps kPostNormAdd;

}  // namespace strata::model
