// SPDX-License-Identifier: Apache-2.0
// Gated short convolution: out_proj(C * conv(B * u)), where one projection of n gives B, C and u,
// and conv is a causal convolution of each channel over its last few inputs. Between passes it
// keeps the convolution's last inputs. Source: HF modeling_lfm2.py, Lfm2ShortConv.
#pragma once
#include "model/blocks/block.h"

namespace strata::model {

struct ShortConvConfig {
  int64_t width = 0;  // channels: those of the model
  int64_t taps = 0;
  bool bias = false;  // of the projections and of the convolution
  friend bool operator==(const ShortConvConfig&, const ShortConvConfig&) = default;
};

extern const BlockOps kShortConv;

}  // namespace strata::model
