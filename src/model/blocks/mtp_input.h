// SPDX-License-Identifier: Apache-2.0
// What the layer of multi-token prediction reads: the decoder's last state and the token behind it,
//   out_j = e_proj(norm_e(embed(token))) + h_proj(norm_h(state_j))
// for each stream j. The pass's tokens are the next ones, its embedding the decoder's own, with its
// adapters. Source: the inference code of DeepSeek-V4, MTPBlock.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

struct MtpInputConfig {
  int64_t num_streams = 1;
  double eps = 1e-6;
  friend bool operator==(const MtpInputConfig&, const MtpInputConfig&) = default;
};

extern const BlockOps kMtpInput;

}  // namespace strata::model
