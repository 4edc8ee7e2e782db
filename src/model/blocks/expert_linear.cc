#include "model/expert_linear.h"

#include <cstring>

#include "model/block.h"
#include "ops/gemm_groups.h"

namespace strata::model {
namespace {

TensorView lora_h(const LayerActivations& acts, Projection p) {
  return acts.lora_h[static_cast<size_t>(p)];
}

// The adapter's module for a projection, and which half of its outputs that is: gate and up may be
// the halves of one module.
struct Found {
  const LoraModule* module = nullptr;
  Projection kind = Projection::kExpertDown;
  int64_t half = 0;
  [[nodiscard]] bool shared() const { return kind == Projection::kExpertGateUp; }
};

Found find_module(const ExpertRun& run, int64_t layer, Projection projection) {
  if (run.adapter == nullptr) return {};
  if (const LoraModule* own = run.adapter->find(layer, projection)) return {own, projection, 0};
  if (projection == Projection::kExpertDown) return {};
  return {run.adapter->find(layer, Projection::kExpertGateUp), Projection::kExpertGateUp,
          projection == Projection::kExpertUp ? 1 : 0};
}

std::span<const ops::GemmGroup> groups(Pass& pass, int64_t layer, Projection projection) {
  std::vector<ops::GemmGroup>& list = pass.expert_rows.groups;
  list.clear();
  for (const ExpertRun& expert : pass.expert_rows.experts()) {
    const PanelView w =
        pass.weights.layer(layer).expert_panel(weight_of(projection), expert.expert);
    list.push_back({.begin = expert.begin, .end = expert.end, .w = w});
  }
  return list;
}

// y (and d_x) of one projection in backward, and where its shared d_h waits.
struct Backward {
  Pass& pass;
  int64_t layer;
  const LayerActivations& acts;
  TensorView x;
  TensorView shared_d_h;  // [n, R] f32: gate's part of the sum over gate and up

  // d_b += dy^T h
  void add_d_b(const ExpertRun& run, const Found& found, TensorView dy_run) const {
    if (!pass.adapter_gradients || !run.adapter->trains()) return;
    const TensorView h = lora_h(acts, found.kind).slice_cols(0, found.module->spec.rank);
    ops::gemm_dw(pass.backend, dy_run, h.slice_rows(run.begin, run.end),
                 pass.expert_rows.ends_of_run(run), found.module->d_b_of(run.expert, found.half));
  }

  // y += h B^T, h = scale * x A^T  =>  d(x A^T) = scale * dy B, written to d_h_run
  void make_d_h(const ExpertRun& run, const Found& found, TensorView dy_run,
                TensorView d_h_run) const {
    const LoraModule& module = *found.module;
    const PanelView b = module.b_of(run.expert, found.half);
    if (!found.shared()) {
      ops::gemm_dx(pass.backend, {.x = dy_run, .w = b, .scale = module.scale}, d_h_run);
      return;
    }
    // One chain over gate's outputs and then up's.
    const TensorView sum =
        shared_d_h.slice_cols(0, module.spec.rank).slice_rows(run.begin, run.end);
    ops::gemm_dx(pass.backend, {.x = dy_run, .w = b}, sum, /*accumulate=*/found.half == 1);
    if (found.half == 0) return;
    for (int64_t row = 0; row < sum.rows(); ++row) {
      const float* from = static_cast<const float*>(sum.row(row));
      for (int64_t j = 0; j < sum.cols(); ++j) {
        if (pass.dtype() == DType::kF32) {
          static_cast<float*>(d_h_run.row(row))[j] = module.scale * from[j];
        } else {
          static_cast<Bf16*>(d_h_run.row(row))[j] = to_bf16(module.scale * from[j]);
        }
      }
    }
  }

  void projection(Projection p, TensorView dy, TensorView d_x, bool accumulate) const {
    Scratch& scratch = pass.backend.scratch();
    const Scratch::Mark mark(scratch);
    std::vector<ops::LowRankRun>& low_rank = pass.expert_rows.low_rank;
    low_rank.clear();
    int64_t rank = 0;
    for (const ExpertRun& run : pass.expert_rows.runs()) {
      const Found found = find_module(run, layer, p);
      if (found.module != nullptr) rank = std::max(rank, found.module->spec.rank);
    }
    const TensorView d_h = rank == 0 ? TensorView() : scratch.take(pass.dtype(), {x.rows(), rank});
    for (const ExpertRun& run : pass.expert_rows.runs()) {
      const Found found = find_module(run, layer, p);
      if (found.module == nullptr) continue;
      const TensorView dy_run = dy.slice_rows(run.begin, run.end);
      const TensorView d_h_module = d_h.slice_cols(0, found.module->spec.rank);
      const TensorView d_h_run = d_h_module.slice_rows(run.begin, run.end);
      make_d_h(run, found, dy_run, d_h_run);
      add_d_b(run, found, dy_run);
      if (found.shared() && found.half == 0) continue;
      low_rank.push_back({.begin = run.begin,
                          .end = run.end,
                          .x = d_h_module,
                          .w = found.module->a_of(run.expert)});
      if (pass.adapter_gradients && run.adapter->trains()) {
        ops::gemm_dw(pass.backend, d_h_run, x.slice_rows(run.begin, run.end),
                     pass.expert_rows.ends_of_run(run), found.module->d_a_of(run.expert));
      }
    }
    add_base_gradients(p, dy);
    // d_x = dy W + d(x A^T) A
    ops::gemm_groups_dx(pass.backend, {.x = dy, .groups = groups(pass, layer, p), .runs = low_rank},
                        d_x, accumulate);
  }

  void add_base_gradients(Projection p, TensorView dy) const {
    if (pass.base_gradients == nullptr) return;
    const size_t first = pass.weights.layer_index(layer, weight_of(p));
    for (const ExpertRun& expert : pass.expert_rows.experts()) {
      ops::gemm_dw(pass.backend, dy.slice_rows(expert.begin, expert.end),
                   x.slice_rows(expert.begin, expert.end), pass.expert_rows.ends_of_expert(expert),
                   base_gradient(pass, first + static_cast<size_t>(expert.expert)));
    }
  }
};

}  // namespace

void expert_forward(Pass& pass, int64_t layer, Projection projection, const LayerActivations& acts,
                    TensorView x, TensorView y) {
  std::vector<ops::LowRankRun>& low_rank = pass.expert_rows.low_rank;
  std::vector<ops::RunProduct>& own = pass.expert_rows.products;
  std::vector<ops::RunProduct>& shared = pass.product_buffer;
  low_rank.clear();
  own.clear();
  shared.clear();
  for (const ExpertRun& run : pass.expert_rows.runs()) {
    const Found found = find_module(run, layer, projection);
    if (found.module == nullptr) continue;
    if (found.half == 0) {
      (found.shared() ? shared : own)
          .push_back({.begin = run.begin,
                      .end = run.end,
                      .w = found.module->a_of(run.expert),
                      .scale = found.module->scale});
    }
    low_rank.push_back({.begin = run.begin,
                        .end = run.end,
                        .x = lora_h(acts, found.kind).slice_cols(0, found.module->spec.rank),
                        .w = found.module->b_of(run.expert, found.half)});
  }
  // h = round(scale * x A^T)
  if (!own.empty()) ops::gemm_runs(pass.backend, x, own, lora_h(acts, projection));
  if (!shared.empty()) {
    ops::gemm_runs(pass.backend, x, shared, lora_h(acts, Projection::kExpertGateUp));
  }
  if (y.empty()) return;
  ops::gemm_groups(pass.backend,
                   {.x = x, .groups = groups(pass, layer, projection), .runs = low_rank}, y);
}

void expert_down_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView x,
                          TensorView dy, TensorView d_x) {
  const Backward backward{pass, layer, acts, x, {}};
  backward.projection(Projection::kExpertDown, dy, d_x, false);
}

void expert_gate_up_backward(Pass& pass, int64_t layer, const LayerActivations& acts, TensorView x,
                             TensorView d_gate, TensorView d_up, TensorView d_x) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView h = lora_h(acts, Projection::kExpertGateUp);
  const TensorView shared =
      h.empty() ? TensorView() : pass.backend.scratch().take(DType::kF32, h.shape);
  const Backward backward{pass, layer, acts, x, shared};
  backward.projection(Projection::kExpertGate, d_gate, d_x, false);
  backward.projection(Projection::kExpertUp, d_up, d_x, true);
}

}  // namespace strata::model
