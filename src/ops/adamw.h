// SPDX-License-Identifier: Apache-2.0
// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101; eps outside the
// root):
//   g' = g * grad_scale; m = beta1 m + (1 - beta1) g'; v = beta2 v + (1 - beta2) g'^2
//   p -= lr * (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay * p), decay
//   by p before the step.
// All fp32; scalar factors are computed in double and rounded once. Engine thread only;
// elementwise.
#pragma once
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "ops/pack.h"
#include "tensor/view.h"

namespace strata::ops {

struct AdamWArgs {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-12;
  double weight_decay = 0.0;
  double grad_scale = 1.0;  // the clip factor
  int64_t step = 1;         // 1 for the first step
};

// p, m, v updated in place; all [n] f32, the same shape as g. beta2 close to 1 is exact in double.
void adamw(Backend& backend, const AdamWArgs& args, TensorView g, TensorView p, TensorView m,
           TensorView v);

// One tensor of many, and the copies of its values that products read.
struct AdamWItem {
  TensorView g, p, m, v;
  std::span<const PackItem> packs;  // of rows of p
};

// adamw of every item, whose g then becomes zero, and its packs. A small item is one worker's from
// the step to the packs, while it is in that core's cache; all workers share a large one's step.
void adamw_fused(Backend& backend, const AdamWArgs& args, std::span<const AdamWItem> items);

}  // namespace strata::ops
