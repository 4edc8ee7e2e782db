// SPDX-License-Identifier: Apache-2.0
#include "model/final_norm.h"

#include "model/residual.h"

namespace strata::model {
namespace {

TensorView make_norm_input(Pass& pass, const FinalNorm& norm, TensorView state) {
  const ModelConfig& c = pass.weights.config();
  if (!c.streams) return state;
  const TensorView x = pass.take(pass.dtype(), {state.rows(), c.hidden_size});
  c.streams->ops().collapse(pass, norm.streams, state, x);
  return x;
}

ops::RmsNormArgs args_of(const Pass& pass, const FinalNorm& norm, TensorView x) {
  const ModelConfig& c = pass.weights.config();
  return norm_args(x, norm.weight, c.rms_norm_eps, c.norm_offset);
}

}  // namespace

void final_norm(Pass& pass, const FinalNorm& norm, TensorView state, TensorView hidden) {
  const Scratch::Mark mark(pass.backend.scratch());
  ops::rms_norm(pass.backend, args_of(pass, norm, make_norm_input(pass, norm, state)), hidden, {});
}

void final_norm_backward(Pass& pass, const FinalNorm& norm, TensorView state, TensorView d_hidden,
                         TensorView d_state) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ModelConfig& c = pass.weights.config();
  const TensorView x = make_norm_input(pass, norm, state);
  const TensorView d_x = c.streams ? zeros(pass, {x.rows(), x.cols()}) : d_state;
  ops::rms_norm_backward(pass.backend, args_of(pass, norm, x), {}, d_hidden, d_x,
                         pass.base_gradient(norm.weight_index));
  if (c.streams) c.streams->ops().collapse_backward(pass, norm.streams, state, d_x, d_state);
}

}  // namespace strata::model
