#include "model/gated_mlp.h"

#include "model/block.h"
#include "ops/swiglu.h"

namespace strata::model {
namespace {

TensorView lora_h(const LayerActivations& acts, Projection p) {
  return acts.lora_h[static_cast<size_t>(p)];
}

}  // namespace

void gated_mlp_forward(Pass& pass, int64_t layer, const GatedMlp& mlp, const LayerActivations& acts,
                       TensorView n, TensorView add, TensorView out) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ModelWeights& w = pass.weights;
  linear_forward(pass, pass.rows, layer_linear(w, layer, mlp.gate), n, {}, lora_h(acts, mlp.gate),
                 acts.gate);
  linear_forward(pass, pass.rows, layer_linear(w, layer, mlp.up), n, {}, lora_h(acts, mlp.up),
                 acts.up);
  const TensorView activated = pass.backend.scratch().take(pass.dtype(), acts.gate.shape);
  ops::swiglu(pass.backend, acts.gate, acts.up, activated);
  linear_forward(pass, pass.rows, layer_linear(w, layer, mlp.down), activated, add,
                 lora_h(acts, mlp.down), out);
}

void gated_mlp_backward(Pass& pass, int64_t layer, const GatedMlp& mlp,
                        const LayerActivations& acts, TensorView n, TensorView d_out,
                        TensorView d_n) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const ModelWeights& w = pass.weights;
  const LinearWeights gate = layer_linear(w, layer, mlp.gate);
  const LinearWeights up = layer_linear(w, layer, mlp.up);
  const LinearWeights down = layer_linear(w, layer, mlp.down);
  const TensorView d_gate = scratch.take(pass.dtype(), acts.gate.shape);
  const TensorView d_up = scratch.take(pass.dtype(), acts.gate.shape);
  {
    const Scratch::Mark inner(scratch);
    const TensorView activated = scratch.take(pass.dtype(), acts.gate.shape);
    ops::swiglu(pass.backend, acts.gate, acts.up, activated);
    const TensorView d_activated = scratch.take(pass.dtype(), acts.gate.shape);
    // out = add + down(activated)
    linear_backward(pass, pass.rows, down, activated, lora_h(acts, mlp.down), d_out, d_activated,
                    false, base_gradient(pass, down.weight_index));
    // activated = silu(gate) * up
    ops::swiglu_backward(pass.backend, acts.gate, acts.up, d_activated, d_gate, d_up);
  }
  linear_backward(pass, pass.rows, gate, n, lora_h(acts, mlp.gate), d_gate, d_n, false,
                  base_gradient(pass, gate.weight_index));
  linear_backward(pass, pass.rows, up, n, lora_h(acts, mlp.up), d_up, d_n, true,
                  base_gradient(pass, up.weight_index));
}

}  // namespace strata::model
