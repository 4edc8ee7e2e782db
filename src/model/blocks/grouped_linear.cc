// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/grouped_linear.h"

#include "model/linear.h"

namespace strata::model {
namespace {

// One group's part of the projection.
struct Group {
  Pass& pass;
  const BlockContext& context;
  int key;
  int64_t index;
  RowBlocks blocks;
  PanelView weight;

  Group(Pass& of, const BlockContext& in, const GroupedLinear& grouped, int64_t g, int64_t outputs)
      : pass(of),
        context(in),
        key(grouped.key),
        index(g),
        blocks({outputs, 0}),
        weight(blocks.block(in.param(grouped.key).panel, g, false)) {}

  [[nodiscard]] TensorView part(TensorView rows, int64_t width) const {
    return rows.slice_cols(index * width, (index + 1) * width);
  }
  [[nodiscard]] PanelView b_of(const LoraModule& module) const {
    return blocks.block(module.b_panel, index, false);
  }

  // h = scale * x A^T
  void multiply_by_lora_a(TensorView x, TensorView h) const {
    std::vector<ops::SegmentProduct>& products = pass.lists.products;
    products.clear();
    for_each_module(pass, context, key, [&](const auto& run, const auto& module) {
      products.push_back(
          {.begin = run.begin, .end = run.end, .w = module.a_panel, .scale = module.scale});
    });
    if (!products.empty()) ops::gemm_runs(pass.backend, x, products, h);
  }
  // d(x A^T) = scale * dy B
  void multiply_by_lora_b(TensorView dy, TensorView d_h) const {
    for_each_module(pass, context, key, [&](const auto& run, const auto& module) {
      ops::gemm_dx(
          pass.backend,
          {.x = dy.slice_rows(run.begin, run.end), .w = b_of(module), .scale = module.scale},
          d_h.slice_cols(0, module.spec.rank).slice_rows(run.begin, run.end));
    });
  }
  // The low-rank terms: rows of h times factor(module), which is B of the group, or of d_h times A.
  template <typename Factor>
  [[nodiscard]] std::span<const ops::LowRankSegment> make_low_rank_segments(TensorView h,
                                                                            Factor factor) const {
    std::vector<ops::LowRankSegment>& runs = pass.lists.low_rank;
    runs.clear();
    for_each_module(pass, context, key, [&](const auto& run, const auto& module) {
      runs.push_back({.begin = run.begin,
                      .end = run.end,
                      .x = h.slice_cols(0, module.spec.rank),
                      .w = factor(module)});
    });
    return runs;
  }

  // d_B += dy^T h of the runs that train, d_W += dy^T x; both of the group's rows.
  void add_b_and_weight_gradients(TensorView dy, TensorView x, TensorView h,
                                  TensorView d_weight) const {
    const auto own_rows = [&](TensorView rows) {
      return rows.slice_rows(index * blocks.first, (index + 1) * blocks.first);
    };
    for_each_module(pass, context, key, [&](const auto& run, const auto& module) {
      if (!pass.trains(run)) return;
      ops::gemm_dw(pass.backend, dy.slice_rows(run.begin, run.end),
                   h.slice_cols(0, module.spec.rank).slice_rows(run.begin, run.end),
                   pass.rows.ends_of(run), own_rows(module.d_b));
    });
    if (d_weight.empty()) return;
    ops::gemm_dw(pass.backend, dy, x, pass.rows.ends(), own_rows(d_weight));
  }

  // Fills h and d_h, which are empty where no row has an adapter; writes dx.
  void backward(TensorView x, TensorView dy, TensorView h, TensorView d_h, TensorView d_weight,
                TensorView dx) const {
    if (!h.empty()) {
      multiply_by_lora_a(x, h);
      multiply_by_lora_b(dy, d_h);
    }
    add_b_and_weight_gradients(dy, x, h, d_weight);
    // dx = dy W + d(x A^T) A
    ops::gemm_dx(pass.backend,
                 {.x = dy,
                  .w = weight,
                  .runs = make_low_rank_segments(
                      d_h, [](const LoraModule& module) { return module.a_panel; })},
                 dx);
  }
};

// d_a += per sequence and group: d_h_g^T x_g. d_h [T, G R] with groups `rank_stride` apart.
void add_a_gradient(Pass& pass, const AdapterSegment& run, const LoraModule& module,
                    int64_t num_groups, TensorView x, TensorView d_h) {
  const int64_t inputs = x.cols() / num_groups;
  const int64_t rank_stride = d_h.cols() / num_groups;
  int64_t begin = 0;
  for (const int64_t end : pass.rows.ends_of(run)) {
    const int64_t ends[] = {end - begin};
    for (int64_t g = 0; g < num_groups; ++g) {
      const TensorView d_h_g = d_h.slice_cols(g * rank_stride, g * rank_stride + module.spec.rank);
      ops::gemm_dw(
          pass.backend, d_h_g.slice_rows(run.begin + begin, run.begin + end),
          x.slice_cols(g * inputs, (g + 1) * inputs).slice_rows(run.begin + begin, run.begin + end),
          ends, module.d_a);
    }
    begin = end;
  }
}

}  // namespace

void grouped_linear_forward(Pass& pass, const BlockContext& context, const GroupedLinear& grouped,
                            TensorView x, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  const int64_t inputs = x.cols() / grouped.num_groups;
  const int64_t outputs = y.cols() / grouped.num_groups;
  const int64_t rank = largest_rank(pass.rows, context.layer, context.param(grouped.key).target);
  const TensorView h = rank == 0 ? TensorView() : pass.take(pass.dtype(), {x.rows(), rank});
  for (int64_t g = 0; g < grouped.num_groups; ++g) {
    const Group group(pass, context, grouped, g, outputs);
    const TensorView x_g = group.part(x, inputs);
    if (rank > 0) group.multiply_by_lora_a(x_g, h);
    ops::gemm(pass.backend,
              {.x = x_g,
               .w = group.weight,
               .runs = group.make_low_rank_segments(
                   h, [&](const LoraModule& module) { return group.b_of(module); })},
              group.part(y, outputs));
  }
}

void grouped_linear_backward(Pass& pass, const BlockContext& context, const GroupedLinear& grouped,
                             TensorView x, TensorView dy, TensorView dx) {
  const Scratch::Mark mark(pass.backend.scratch());
  const int64_t inputs = x.cols() / grouped.num_groups;
  const int64_t outputs = dy.cols() / grouped.num_groups;
  const int64_t rank = largest_rank(pass.rows, context.layer, context.param(grouped.key).target);
  TensorView h;
  TensorView d_h;  // of all groups: A's gradient goes by sequence
  if (rank > 0) {
    h = pass.take(pass.dtype(), {x.rows(), rank});
    d_h = pass.take(pass.dtype(), {x.rows(), grouped.num_groups * rank});
  }
  const TensorView d_weight = pass.base_gradient(context.param(grouped.key).index);
  for (int64_t g = 0; g < grouped.num_groups; ++g) {
    const Group group(pass, context, grouped, g, outputs);
    const TensorView d_h_g = rank == 0 ? TensorView() : group.part(d_h, rank);
    group.backward(group.part(x, inputs), group.part(dy, outputs), h, d_h_g, d_weight,
                   group.part(dx, inputs));
  }
  for_each_module(pass, context, grouped.key, [&](const auto& run, const auto& module) {
    if (pass.trains(run)) add_a_gradient(pass, run, module, grouped.num_groups, x, d_h);
  });
}

}  // namespace strata::model
