// SPDX-License-Identifier: Apache-2.0
// What ppo and gspo share: -w min(ratio A, clip(ratio, lo, hi) A), with d ratio / d lp = ratio.
#pragma once
#include <algorithm>

#include "train/loss.h"

namespace strata::train {

inline TokenLoss clipped_loss(float ratio, float low, float high, float w, float advantage) {
  const float plain = ratio * advantage;
  const float bounded = std::clamp(ratio, low, high) * advantage;
  // The clipped branch is constant in lp where it is the smaller one.
  if (bounded < plain) return {-w * bounded, 0.0f};
  return {-w * plain, -w * plain};
}

}  // namespace strata::train
