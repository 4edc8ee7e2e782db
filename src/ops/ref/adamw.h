// SPDX-License-Identifier: Apache-2.0
// AdamW in plain double loops, as the paper writes it: the oracle of ops/adamw.h.
#pragma once
#include <cmath>
#include <vector>

#include "ops/adamw.h"

namespace strata::ops::ref {

inline void adamw(const AdamWArgs& args, const std::vector<double>& g, std::vector<double>& p,
                  std::vector<double>& m, std::vector<double>& v) {
  const auto step = static_cast<double>(args.step);
  for (size_t i = 0; i < g.size(); ++i) {
    const double grad = g[i] * args.grad_scale;
    m[i] = args.beta1 * m[i] + (1 - args.beta1) * grad;
    v[i] = args.beta2 * v[i] + (1 - args.beta2) * grad * grad;
    const double m_hat = m[i] / (1 - std::pow(args.beta1, step));
    const double v_hat = v[i] / (1 - std::pow(args.beta2, step));
    p[i] -= args.lr * (m_hat / (std::sqrt(v_hat) + args.eps) + args.weight_decay * p[i]);
  }
}

}  // namespace strata::ops::ref
