// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/experts/expert_linear.h"

#include <algorithm>

#include "model/linear.h"
#include "ops/elementwise.h"
#include "ops/gemm_groups.h"

namespace strata::model {
namespace {

// The adapter's module for a matrix, and which half of its outputs that is: gate and up may be the
// halves of one module.
struct ModuleHalf {
  const LoraModule* module = nullptr;
  MoeKey key = kMoeDown;
  int64_t half = 0;
  [[nodiscard]] bool shared() const { return key == kMoeGateUp; }
};

ModuleHalf find_module(const ExpertSegment& run, const BlockContext& context, MoeKey key) {
  if (run.adapter == nullptr) return {};
  const auto of = [&](MoeKey k) {
    return run.adapter->find(context.layer, context.param(k).target);
  };
  if (const LoraModule* own = of(key)) return {own, key, 0};
  if (key == kMoeDown) return {};
  return {of(kMoeGateUp), kMoeGateUp, key == kMoeUp ? 1 : 0};
}

std::span<const ops::GemmGroup> groups(Pass& pass, const BlockContext& context, MoeKey key) {
  std::vector<ops::GemmGroup>& list = pass.lists.blocks.of<ExpertRows>().groups;
  list.clear();
  for (const ExpertSegment& expert : pass.lists.blocks.of<ExpertRows>().experts()) {
    list.push_back({.begin = expert.begin,
                    .end = expert.end,
                    .w = expert_panel(context.param(key).panel, expert.expert)});
  }
  return list;
}

// y (and d_x) of one projection in backward, and where its shared d_h waits.
struct Backward {
  Pass& pass;
  const BlockContext& context;
  const ExpertLoraH& lora_h;
  TensorView x;
  TensorView shared_d_h;  // [n, R] f32: gate's part of the sum over gate and up

  // d_b += dy^T h
  void add_d_b(const ExpertSegment& run, const ModuleHalf& found, TensorView dy_run) const {
    if (!pass.adapter_gradients || !run.adapter->trains()) return;
    const TensorView h = lora_h.of(found.key).slice_cols(0, found.module->spec.rank);
    ops::gemm_dw(pass.backend, dy_run, h.slice_rows(run.begin, run.end),
                 pass.lists.blocks.of<ExpertRows>().ends_of_run(run),
                 found.module->d_b_of(run.expert, found.half));
  }

  // y += h B^T, h = scale * x A^T  =>  d(x A^T) = scale * dy B, written to d_h_run
  void make_d_h(const ExpertSegment& run, const ModuleHalf& found, TensorView dy_run,
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
    if (found.half == 1) ops::scale(pass.backend, sum, module.scale, d_h_run);
  }

  void projection(MoeKey key, TensorView dy, TensorView d_x, bool accumulate) const {
    Scratch& scratch = pass.backend.scratch();
    const Scratch::Mark mark(scratch);
    std::vector<ops::LowRankSegment>& low_rank = pass.lists.blocks.of<ExpertRows>().low_rank;
    low_rank.clear();
    int64_t rank = 0;
    for (const ExpertSegment& run : pass.lists.blocks.of<ExpertRows>().runs()) {
      const ModuleHalf found = find_module(run, context, key);
      if (found.module != nullptr) rank = std::max(rank, found.module->spec.rank);
    }
    const TensorView d_h = rank == 0 ? TensorView() : scratch.take(pass.dtype(), {x.rows(), rank});
    for (const ExpertSegment& run : pass.lists.blocks.of<ExpertRows>().runs()) {
      const ModuleHalf found = find_module(run, context, key);
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
                     pass.lists.blocks.of<ExpertRows>().ends_of_run(run),
                     found.module->d_a_of(run.expert));
      }
    }
    add_base_gradients(key, dy);
    // d_x = dy W + d(x A^T) A
    ops::gemm_groups_dx(pass.backend,
                        {.x = dy,
                         .groups = groups(pass, context, key),
                         .runs = low_rank,
                         .lists = &pass.lists.blocks.of<ExpertRows>().group_lists},
                        d_x, accumulate);
  }

  void add_base_gradients(MoeKey key, TensorView dy) const {
    if (pass.base_gradients == nullptr) return;
    const size_t first = context.param(key).index;
    for (const ExpertSegment& expert : pass.lists.blocks.of<ExpertRows>().experts()) {
      ops::gemm_dw(pass.backend, dy.slice_rows(expert.begin, expert.end),
                   x.slice_rows(expert.begin, expert.end),
                   pass.lists.blocks.of<ExpertRows>().ends_of_expert(expert),
                   pass.base_gradient(first + static_cast<size_t>(expert.expert)));
    }
  }
};

}  // namespace

ExpertLoraH take_expert_lora_h(Pass& pass, const BlockContext& context) {
  ExpertLoraH lora_h;
  const int64_t rows = pass.num_tokens() * context.as<MoeConfig>().top_k;
  for (size_t i = 0; i < lora_h.h.size(); ++i) {
    const int key = kMoeGate + static_cast<int>(i);
    const int64_t rank = largest_rank(pass.rows, context.layer, context.param(key).target);
    if (rank > 0) {
      lora_h.h[i] =
          pass.save(kLoraTag, lora_flops(pass, context, key, rank), pass.dtype(), {rows, rank});
    }
  }
  return lora_h;
}

void expert_forward(Pass& pass, const BlockContext& context, MoeKey key, const ExpertLoraH& lora_h,
                    TensorView x, TensorView y) {
  std::vector<ops::LowRankSegment>& low_rank = pass.lists.blocks.of<ExpertRows>().low_rank;
  std::vector<ops::SegmentProduct>& own = pass.lists.blocks.of<ExpertRows>().products;
  std::vector<ops::SegmentProduct>& shared = pass.lists.products;
  y = pass.unknown(y);
  if (y.empty() && std::all_of(lora_h.h.begin(), lora_h.h.end(),
                               [&](TensorView h) { return h.empty() || pass.known(h); })) {
    return;
  }
  low_rank.clear();
  own.clear();
  shared.clear();
  for (const ExpertSegment& run : pass.lists.blocks.of<ExpertRows>().runs()) {
    const ModuleHalf found = find_module(run, context, key);
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
                        .x = lora_h.of(found.key).slice_cols(0, found.module->spec.rank),
                        .w = found.module->b_of(run.expert, found.half)});
  }
  // h = round(scale * x A^T)
  if (!own.empty()) ops::gemm_runs(pass.backend, x, own, lora_h.of(key));
  if (!shared.empty()) ops::gemm_runs(pass.backend, x, shared, lora_h.of(kMoeGateUp));
  if (y.empty()) return;
  ops::gemm_groups(pass.backend,
                   {.x = x,
                    .groups = groups(pass, context, key),
                    .runs = low_rank,
                    .lists = &pass.lists.blocks.of<ExpertRows>().group_lists},
                   y);
}

void expert_down_backward(Pass& pass, const BlockContext& context, const ExpertLoraH& lora_h,
                          TensorView x, TensorView dy, TensorView d_x) {
  const Backward backward{pass, context, lora_h, x, {}};
  backward.projection(kMoeDown, dy, d_x, false);
}

void expert_gate_up_backward(Pass& pass, const BlockContext& context, const ExpertLoraH& lora_h,
                             TensorView x, TensorView d_gate, TensorView d_up, TensorView d_x) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView h = lora_h.of(kMoeGateUp);
  const TensorView shared = h.empty() ? TensorView() : pass.take(DType::kF32, h.shape);
  const Backward backward{pass, context, lora_h, x, shared};
  backward.projection(kMoeGate, d_gate, d_x, false);
  backward.projection(kMoeUp, d_up, d_x, true);
}

}  // namespace strata::model
