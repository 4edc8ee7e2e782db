// SPDX-License-Identifier: Apache-2.0
// What the layer of multi-token prediction reads where one matrix takes both of its inputs, the
// token's first:
//   out = fc [norm_e(embed(token)); norm_h(hidden)]
// The pass's tokens are the next ones, its embedding the decoder's own, with its adapters; hidden
// is what the decoder's final norm made. Sources of the formula: HF modeling_layers.py, MtpLayer;
// vLLM qwen3_5_mtp.py.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

struct MtpJoinedInputConfig {
  double eps = 1e-6;
  float norm_offset = 0.0f;  // a norm's multiplier is this plus its weight
  friend bool operator==(const MtpJoinedInputConfig&, const MtpJoinedInputConfig&) = default;
};

extern const BlockOps kMtpJoinedInput;

}  // namespace strata::model
