// What both blocks of a layer share: the norm of a residual and the rounding of a residual
// gradient. Internal to model/.
#pragma once
#include "model/linear.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace strata::model {

inline ops::RmsNormArgs norm_args(const Pass& pass, TensorView x, TensorView weight) {
  return {.x = x, .weight = weight, .eps = static_cast<float>(pass.weights.config().rms_norm_eps)};
}

// norm(x) in the compute type, from scratch.
inline TensorView normed(Pass& pass, TensorView x, TensorView weight) {
  const TensorView y = pass.backend.scratch().take(pass.dtype(), {x.rows(), x.cols()});
  ops::rms_norm(pass.backend, norm_args(pass, x, weight), y, {});
  return y;
}

// The gradient as a product reads it: itself in f32 mode, rounded to bf16 in bf16 mode.
inline TensorView rounded(Pass& pass, TensorView d) {
  if (pass.dtype() == DType::kF32) return d;
  const TensorView y = pass.backend.scratch().take(pass.dtype(), {d.rows(), d.cols()});
  ops::copy(pass.backend, d, y);
  return y;
}

// Where a base parameter's gradient goes; empty when it does not train.
inline TensorView base_gradient(const Pass& pass, size_t index) {
  if (pass.base_gradients == nullptr || index == ModelWeights::npos) return {};
  return pass.base_gradients->d_weight[index];
}

}  // namespace strata::model
