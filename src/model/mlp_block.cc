#include "model/mlp_block.h"

#include "model/block.h"
#include "ops/swiglu.h"

namespace strata::model {
namespace {

TensorView lora_h(const LayerActivations& acts, Projection p) {
  return acts.lora_h[static_cast<size_t>(p)];
}

}  // namespace

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
  const ModelWeights& w = pass.weights;
  const TensorView n = normed(pass, acts.h, w.layer(layer).vec(LayerParam::kPostNorm));
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kGate), n, {},
                 lora_h(acts, Projection::kGate), acts.gate);
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kUp), n, {},
                 lora_h(acts, Projection::kUp), acts.up);
  const TensorView activated = pass.backend.scratch().take(pass.dtype(), acts.gate.shape);
  ops::swiglu(pass.backend, acts.gate, acts.up, activated);
  linear_forward(pass, pass.rows, layer_linear(w, layer, Projection::kDown), activated, acts.h,
                 lora_h(acts, Projection::kDown), out);
}

void mlp_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const ModelWeights& w = pass.weights;
  const LinearWeights gate = layer_linear(w, layer, Projection::kGate);
  const LinearWeights up = layer_linear(w, layer, Projection::kUp);
  const LinearWeights down = layer_linear(w, layer, Projection::kDown);
  const TensorView d_gate = scratch.take(pass.dtype(), acts.gate.shape);
  const TensorView d_up = scratch.take(pass.dtype(), acts.gate.shape);
  {
    const Scratch::Mark inner(scratch);
    const TensorView activated = scratch.take(pass.dtype(), acts.gate.shape);
    ops::swiglu(pass.backend, acts.gate, acts.up, activated);
    const TensorView d_activated = scratch.take(pass.dtype(), acts.gate.shape);
    // out = h + down(activated)
    linear_backward(pass, pass.rows, down, activated, lora_h(acts, Projection::kDown),
                    rounded(pass, d), d_activated, false, base_gradient(pass, down.weight_index));
    // activated = silu(gate) * up
    ops::swiglu_backward(pass.backend, acts.gate, acts.up, d_activated, d_gate, d_up);
  }
  const TensorView norm_weight = w.layer(layer).vec(LayerParam::kPostNorm);
  const TensorView n = normed(pass, acts.h, norm_weight);
  const TensorView d_n = scratch.take(DType::kF32, {d.rows(), d.cols()});
  linear_backward(pass, pass.rows, gate, n, lora_h(acts, Projection::kGate), d_gate, d_n, false,
                  base_gradient(pass, gate.weight_index));
  linear_backward(pass, pass.rows, up, n, lora_h(acts, Projection::kUp), d_up, d_n, true,
                  base_gradient(pass, up.weight_index));
  // n = norm(h); the residual path is d itself
  ops::rms_norm_backward(pass.backend, norm_args(pass, acts.h, norm_weight), {}, d_n, d,
                         base_gradient(pass, w.layer_index(layer, LayerParam::kPostNorm)));
}

}  // namespace strata::model
