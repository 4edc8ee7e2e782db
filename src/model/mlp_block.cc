#include "model/mlp_block.h"

#include "model/block.h"
#include "model/gated_mlp.h"

namespace strata::model {

void take_mlp_activations(Pass& pass, LayerActivations& acts) {
  const Shape shape = {pass.num_tokens(), pass.weights.config().intermediate_size};
  acts.gate = pass.backend.scratch().take(pass.dtype(), shape);
  acts.up = pass.backend.scratch().take(pass.dtype(), shape);
}

int64_t mlp_activation_bytes(const ModelConfig& c, DType dtype, int64_t tokens) {
  return 2 * Arena::aligned(tokens * c.intermediate_size * dtype_bytes(dtype));
}

void mlp_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView out) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView n = normed(pass, acts.h, pass.weights.layer(layer).vec(LayerParam::kPostNorm));
  gated_mlp_forward(pass, layer, kDenseMlp, acts, n, acts.h, out);
}

void mlp_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView norm_weight = pass.weights.layer(layer).vec(LayerParam::kPostNorm);
  const TensorView n = normed(pass, acts.h, norm_weight);
  const TensorView d_n = pass.backend.scratch().take(DType::kF32, {d.rows(), d.cols()});
  gated_mlp_backward(pass, layer, kDenseMlp, acts, n, rounded(pass, d), d_n);
  // n = norm(h); the residual path is d itself
  ops::rms_norm_backward(
      pass.backend, norm_args(pass, acts.h, norm_weight), {}, d_n, d,
      base_gradient(pass, pass.weights.layer_index(layer, LayerParam::kPostNorm)));
}

}  // namespace strata::model
