// SPDX-License-Identifier: Apache-2.0
// The gated MLP by its formula, alone and inside other blocks and connectors.
#pragma once
#include <numbers>

#include "tests/model/blocks/reference.h"

namespace strata::testing {

// The tanh form.
inline double gelu_tanh(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// Where gate and up are clamped, and what becomes of them: gate sigmoid(alpha gate) (up + offset).
struct Clamp {
  double limit = 0.0;  // 0: none
  double alpha = 1.0;
  double offset = 0.0;
};

// down(act(gate(x)) * up(x)); with a limit gate is at most that, and up within it on either side.
inline Row gated_mlp(const Params& params, const std::string& prefix, const Row& x,
                     double (*act)(double) = silu, const Clamp& clamp = {}) {
  const double limit = clamp.limit;
  Row gate = linear(params, prefix + "gate_proj", x);
  Row up = linear(params, prefix + "up_proj", x);
  for (size_t i = 0; i < gate.size(); ++i) {
    if (limit > 0.0) {
      gate[i] = std::min(gate[i], limit);
      up[i] = std::clamp(up[i], -limit, limit) + clamp.offset;
      gate[i] = gate[i] * sigmoid(clamp.alpha * gate[i]) * up[i];
      continue;
    }
    gate[i] = act(gate[i]) * up[i];
  }
  return linear(params, prefix + "down_proj", gate);
}

}  // namespace strata::testing
