#include "model/moe_block.h"

#include "model/block.h"
#include "model/expert_linear.h"
#include "model/gated_mlp.h"
#include "ops/swiglu.h"

namespace strata::model {
namespace {

// x[token] for every routed row.
TensorView gather_rows(Pass& pass, const Routing& routing, TensorView x) {
  const TensorView y = pass.backend.scratch().take(x.dtype, {routing.num_rows(), x.cols()});
  ops::gather(pass.backend, x, routing.token_of_row, y);
  return y;
}

// weight * silu(gate) * up of every routed row.
TensorView weighted(Pass& pass, const LayerActivations& acts) {
  const TensorView y = pass.backend.scratch().take(pass.dtype(), acts.expert_gate.shape);
  ops::swiglu_rows(pass.backend, acts.expert_gate, acts.expert_up, acts.routing.row_weights, y);
  return y;
}

void build_rows(Pass& pass, const Routing& routing) {
  pass.expert_rows.build(routing.expert_ends, routing.token_of_row, pass.sequences);
}

// Fills expert_gate, expert_up and their lora_h; then sum = add + the experts' outputs, unless sum
// is empty.
void routed_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView n,
                    TensorView add, TensorView sum) {
  const Scratch::Mark mark(pass.backend.scratch());
  const Routing& routing = acts.routing;
  {
    const Scratch::Mark inner(pass.backend.scratch());
    const TensorView x = gather_rows(pass, routing, n);
    expert_forward(pass, layer, Projection::kExpertGate, acts, x, acts.expert_gate);
    expert_forward(pass, layer, Projection::kExpertUp, acts, x, acts.expert_up);
  }
  const TensorView activated = weighted(pass, acts);
  const TensorView y =
      sum.empty() ? TensorView()
                  : pass.backend.scratch().take(DType::kF32, {routing.num_rows(), n.cols()});
  expert_forward(pass, layer, Projection::kExpertDown, acts, activated, y);
  if (!sum.empty()) ops::gather_sum(pass.backend, y, routing.row_of_slot, add, sum);
}

// Adds the routed path's gradient to d_n [T, D] f32; with `first` d_n is written. d_out [T, D] of
// the compute type. Leaves d_row_weights [n].
void routed_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView n,
                     TensorView d_out, TensorView d_n, bool first, TensorView d_row_weights) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const Routing& routing = acts.routing;
  const TensorView d_gate = scratch.take(pass.dtype(), acts.expert_gate.shape);
  const TensorView d_up = scratch.take(pass.dtype(), acts.expert_gate.shape);
  {
    const Scratch::Mark inner(scratch);
    const TensorView d_activated = scratch.take(pass.dtype(), acts.expert_gate.shape);
    const TensorView activated = weighted(pass, acts);
    // sum[t] = down(activated) of the token's rows
    const TensorView dy = gather_rows(pass, routing, d_out);
    expert_down_backward(pass, layer, acts, activated, dy, d_activated);
    // activated = weight * silu(gate) * up
    ops::swiglu_rows_backward(pass.backend, acts.expert_gate, acts.expert_up, routing.row_weights,
                              d_activated, d_gate, d_up, d_row_weights);
  }
  const TensorView x = gather_rows(pass, routing, n);
  const TensorView d_x = scratch.take(DType::kF32, x.shape);
  expert_gate_up_backward(pass, layer, acts, x, d_gate, d_up, d_x);
  // x[row] = n[token]
  ops::gather_sum(pass.backend, d_x, routing.row_of_slot, first ? TensorView() : d_n, d_n);
}

// d_n += the router's; its weight's gradient.
void router_backward(Pass& pass, int64_t layer, const Routing& routing, TensorView n,
                     TensorView d_row_weights, TensorView d_n) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView d_logits = pass.backend.scratch().take(pass.dtype(), routing.scores.shape);
  routing_backward(pass, layer, routing, d_row_weights, d_logits);
  // logits = router(n)
  const PanelView router = pass.weights.layer(layer).panel(LayerParam::kRouter);
  const TensorView d_weight =
      base_gradient(pass, pass.weights.layer_index(layer, LayerParam::kRouter));
  if (!d_weight.empty()) ops::gemm_dw(pass.backend, d_logits, n, pass.rows.ends(), d_weight);
  ops::gemm_dx(pass.backend, {.x = d_logits, .w = router}, d_n, /*accumulate=*/true);
}

bool has_shared(const Pass& pass) { return pass.weights.config().moe.shared_width > 0; }

}  // namespace

void take_moe_activations(Pass& pass, LayerActivations& acts) {
  const MoeConfig& c = pass.weights.config().moe;
  Scratch& scratch = pass.backend.scratch();
  const Shape shape = {pass.num_tokens() * c.top_k, c.expert_width};
  acts.expert_gate = scratch.take(pass.dtype(), shape);
  acts.expert_up = scratch.take(pass.dtype(), shape);
  if (!has_shared(pass)) return;
  acts.gate = scratch.take(pass.dtype(), {pass.num_tokens(), c.shared_width});
  acts.up = scratch.take(pass.dtype(), {pass.num_tokens(), c.shared_width});
}

int64_t moe_activation_bytes(const ModelConfig& config, DType dtype, int64_t tokens) {
  const MoeConfig& c = config.moe;
  return routing_bytes(config, tokens) +
         2 * Arena::aligned(tokens * c.top_k * c.expert_width * dtype_bytes(dtype)) +
         2 * Arena::aligned(tokens * c.shared_width * dtype_bytes(dtype));
}

int64_t moe_temporary_bytes(const ModelConfig& config, DType dtype, int64_t tokens,
                            int64_t expert_rank, bool backward) {
  const MoeConfig& c = config.moe;
  const int64_t e = dtype_bytes(dtype);
  const int64_t rows = tokens * c.top_k;
  const int64_t hidden = rows * c.expert_width * e;
  const int64_t wide = config.hidden_size;
  const int64_t routed =
      backward ? 2 * hidden + std::max(2 * hidden + rows * wide * e, rows * wide * (e + 4))
               : std::max(rows * wide * e, hidden + rows * wide * 4);
  const int64_t shared = tokens * c.shared_width * e * (backward ? 4 : 1);
  // Gradients of x A^T, of gate and up in f32 too; runs of adapters, one for each row at most.
  const int64_t adapted = expert_rank == 0 ? 0
                                           : rows * ((backward ? expert_rank * (e + 4) : 0) +
                                                     static_cast<int64_t>(sizeof(ops::LowRankRun)));
  // n, d_n or the sum, d rounded; a little for lists
  return tokens * wide * (e + 4 + (backward ? e : 0)) + std::max(routed, shared) + adapted +
         tokens * (c.num_experts * e + c.top_k * 8) + (1 << 20);
}

void moe_forward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView out) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const TensorView n = normed(pass, acts.h, pass.weights.layer(layer).vec(LayerParam::kPostNorm));
  Routing routing = acts.routing;
  if (!routing.known) make_routing(pass, layer, n, routing);
  build_rows(pass, routing);
  if (!has_shared(pass)) return routed_forward(pass, layer, acts, n, acts.h, out);
  // sum = h + routed; out = sum + shared
  const TensorView sum = out.empty() ? TensorView() : scratch.take(DType::kF32, acts.h.shape);
  routed_forward(pass, layer, acts, n, acts.h, sum);
  gated_mlp_forward(pass, layer, kSharedMlp, acts, n, sum, out);
}

void moe_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView d) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  build_rows(pass, acts.routing);
  const TensorView norm_weight = pass.weights.layer(layer).vec(LayerParam::kPostNorm);
  const TensorView n = normed(pass, acts.h, norm_weight);
  const TensorView d_out = rounded(pass, d);
  const TensorView d_n = scratch.take(DType::kF32, {d.rows(), d.cols()});
  const TensorView d_row_weights = scratch.take(DType::kF32, {acts.routing.num_rows()});
  if (has_shared(pass)) gated_mlp_backward(pass, layer, kSharedMlp, acts, n, d_out, d_n);
  routed_backward(pass, layer, acts, n, d_out, d_n, !has_shared(pass), d_row_weights);
  router_backward(pass, layer, acts.routing, n, d_row_weights, d_n);
  // n = norm(h); the residual path is d itself
  ops::rms_norm_backward(
      pass.backend, norm_args(pass, acts.h, norm_weight), {}, d_n, d,
      base_gradient(pass, pass.weights.layer_index(layer, LayerParam::kPostNorm)));
}

}  // namespace strata::model
