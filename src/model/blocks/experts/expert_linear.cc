// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/experts/expert_linear.h"

#include <algorithm>

#include "backend/arena.h"
#include "model/blocks/experts/expert_rows.h"
#include "model/linear.h"
#include "model/tensor_ranks.h"
#include "ops/elementwise.h"
#include "ops/group_bias.h"

namespace strata::model {
namespace {

// The items of a product: one for each run of rows that has an adapter with a module for it.
struct ExpertLists {
  std::vector<ops::GroupedLowRank> low_rank;
  std::vector<ops::GroupedProduct> own, shared;  // shared: of gate and up together
  std::vector<ops::GroupedGradient> a, b;

  static ExpertLists& get_cleared(Pass& pass) {
    auto& lists = pass.lists.blocks.ensure_lists<ExpertLists>();
    lists.low_rank.clear();
    lists.own.clear();
    lists.shared.clear();
    lists.a.clear();
    lists.b.clear();
    return lists;
  }
};

// The adapter's module for a matrix, and which half of its outputs that is: gate and up may be the
// halves of one module.
struct ModuleHalf {
  const LoraModule* module = nullptr;
  MoeKey key = kMoeDown;
  int64_t half = 0;
  [[nodiscard]] bool shared() const { return key == kMoeGateUp; }
};

ModuleHalf find_module_half(const AdapterSegment& run, const BlockContext& context, MoeKey key) {
  const auto of = [&](MoeKey k) { return run.find_module(context.layer, context.param(k).target); };
  if (const LoraModule* own = of(key)) return {own, key, 0};
  if (key == kMoeDown) return {};
  return {of(kMoeGateUp), kMoeGateUp, key == kMoeUp ? 1 : 0};
}

int64_t bytes_between(const void* first, const void* second) {
  return static_cast<const char*>(second) - static_cast<const char*>(first);
}

ops::PanelStack stack_of(PanelView first, PanelView second) {
  return {first, bytes_between(first.data, second.data)};
}
ops::PanelStack weights(const BlockContext& context, MoeKey key) {
  const PanelView& first = context.param(key).panel;
  return stack_of(first, expert_panel(first, 1));
}
// Their rows [begin, end) alone.
ops::PanelStack slice_rows(const ops::PanelStack& stack, int64_t begin, int64_t end) {
  return {stack.first.slice_rows(begin, end), stack.bytes};
}

// The first of this rank's experts in an adapter, which has those of all ranks.
int64_t first_expert(const Pass& pass, const LoraModule& m) {
  return pass.weights.own_experts(m.num_experts).first;
}
ops::PanelStack a_of(const Pass& pass, const LoraModule& m) {
  const int64_t first = first_expert(pass, m);
  return stack_of(m.a_of(first), m.a_of(first + 1));
}
ops::PanelStack b_of(const Pass& pass, const ModuleHalf& m) {
  const int64_t first = first_expert(pass, *m.module);
  return stack_of(m.module->b_of(first, m.half), m.module->b_of(first + 1, m.half));
}
ops::PanelStack whole_b_of(const Pass& pass, const ModuleHalf& m) {
  const int64_t first = first_expert(pass, *m.module);
  return stack_of(m.module->whole_b_of(first, m.half), m.module->whole_b_of(first + 1, m.half));
}
ops::TensorStack d_a_of(const Pass& pass, const LoraModule& m) {
  return {m.d_a_of(first_expert(pass, m)), m.d_a_of(0).num_bytes()};
}
ops::TensorStack d_b_of(const Pass& pass, const ModuleHalf& m) {
  return {m.module->d_b_of(first_expert(pass, *m.module), m.half), m.module->d_b.at(0).num_bytes()};
}

// body(run, its module), of the pass's rows that have one.
template <typename Body>
void for_each_module(const Pass& pass, const BlockContext& context, MoeKey key, Body body) {
  for (const AdapterSegment& run : pass.expert_rows().runs()) {
    const ModuleHalf found = find_module_half(run, context, key);
    if (found.module != nullptr) body(run, found);
  }
}

// y += h B^T, h = scale * x A^T; of gate and up together h is made once, with gate's.
void append_forward_products(const Pass& pass, ExpertLists& lists, const AdapterSegment& run,
                             const ModuleHalf& found, const ExpertLoraH& lora_h) {
  const int64_t first = run.first_end;
  const int64_t end = run.first_end + run.num_ends;
  const LoraModule& module = *found.module;
  if (found.half == 0) {
    (found.shared() ? lists.shared : lists.own)
        .push_back({.first = first, .end = end, .w = a_of(pass, module), .scale = module.scale});
  }
  lists.low_rank.push_back({.first = first,
                            .end = end,
                            .x = lora_h.of(found.key).slice_cols(0, module.spec.rank),
                            .w = b_of(pass, found)});
}

bool is_all_computed(const Pass& pass, const ExpertLoraH& lora_h) {
  return std::all_of(lora_h.h.begin(), lora_h.h.end(),
                     [&](TensorView h) { return h.empty() || pass.is_computed(h); });
}

// The gradients of a parameter of all experts, which are at equal distances; `index` is the first
// one's.
ops::TensorStack gradient_stack(const Pass& pass, size_t index, const ops::GroupedRows& rows) {
  const auto last = static_cast<size_t>(rows.group_ends.size()) - 1;
  const TensorView first = pass.base_gradient(index);
  ops::TensorStack stack = {first};
  if (last > 0) stack.bytes = bytes_between(first.data, pass.base_gradient(index + 1).data);
  CHECK(stack.at(static_cast<int64_t>(last)).data == pass.base_gradient(index + last).data);
  return stack;
}

// y (and d_x) of one projection in backward, and where its shared d_h waits. Of tensor ranks x and
// dy are those of all inputs and outputs.
struct Backward {
  Pass& pass;
  const BlockContext& context;
  const ops::GroupedRows& rows;
  const ExpertLoraH& lora_h;
  TensorView x;
  TensorView shared_d_h;  // [n, R] f32: gate's part of the sum over gate and up

  // y += h B^T, h = scale * x A^T  =>  d_b += dy^T h, d(x A^T) = scale * dy B, d_a += d(x A^T)^T x
  void append_backward_products(ExpertLists& lists, const AdapterSegment& run,
                                const ModuleHalf& found, TensorView dy, TensorView d_h) const {
    const LoraModule& module = *found.module;
    const int64_t first = run.first_end;
    const int64_t end = run.first_end + run.num_ends;
    (found.shared() ? lists.shared : lists.own)
        .push_back({.first = first,
                    .end = end,
                    .w = whole_b_of(pass, found),
                    .scale = found.shared() ? 1.0f : module.scale});
    const bool trains = pass.trains(run);
    if (trains) {
      const TensorView h = lora_h.of(found.key).slice_cols(0, module.spec.rank);
      lists.b.push_back({.first = first, .end = end, .dy = dy, .x = h, .dw = d_b_of(pass, found)});
    }
    // A shared module's h gets one gradient, the sum over both halves, which is whole with up's.
    if (found.shared() && found.half == 0) return;
    const TensorView d_h_module = d_h.slice_cols(0, module.spec.rank);
    lists.low_rank.push_back(
        {.first = first, .end = end, .x = d_h_module, .w = a_of(pass, module)});
    if (trains) {
      lists.a.push_back(
          {.first = first, .end = end, .dy = d_h_module, .x = x, .dw = d_a_of(pass, module)});
    }
  }

  [[nodiscard]] int64_t largest_module_rank(MoeKey key) const {
    int64_t rank = 0;
    for_each_module(pass, context, key, [&](const AdapterSegment&, const ModuleHalf& found) {
      rank = std::max(rank, found.module->spec.rank);
    });
    return rank;
  }

  void set_module_scales(MoeKey key, std::vector<ops::GroupedProduct>& shared) const {
    size_t next = 0;
    for_each_module(pass, context, key, [&](const AdapterSegment&, const ModuleHalf& found) {
      if (found.shared()) shared[next++].scale = found.module->scale;
    });
  }

  // d_h of runs whose module gate and up share is whole with up's; gate's part waits in shared_d_h.
  void compute_d_h(MoeKey key, ExpertLists& lists, TensorView dy, TensorView d_h) const {
    ops::gemm_group_runs_dx(pass.backend, rows, dy, lists.own, d_h);
    if (lists.shared.empty()) return;
    // One chain over gate's outputs and then up's.
    ops::gemm_group_runs_dx(pass.backend, rows, dy, lists.shared, shared_d_h,
                            /*accumulate=*/key == kMoeUp);
    if (key != kMoeUp) return;
    set_module_scales(key, lists.shared);
    ops::scale_group_runs(pass.backend, rows, shared_d_h, lists.shared, d_h);
  }

  void projection_backward(MoeKey key, TensorView dy, TensorView d_x, bool accumulate) const {
    Scratch& scratch = pass.backend.scratch();
    const Scratch::Mark mark(scratch);
    const int64_t rank = largest_module_rank(key);
    const TensorView d_h = rank == 0 ? TensorView() : scratch.take(pass.dtype(), {x.rows(), rank});
    ExpertLists& lists = ExpertLists::get_cleared(pass);
    for_each_module(pass, context, key, [&](const AdapterSegment& run, const ModuleHalf& found) {
      append_backward_products(lists, run, found, dy, d_h);
    });
    if (rank > 0) compute_d_h(key, lists, dy, d_h);
    ops::gemm_dw_groups(pass.backend, rows, lists.b);
    ops::gemm_dw_groups(pass.backend, rows, lists.a);
    add_base_gradients(key, dy);
    // d_x = dy W + d(x A^T) A
    if (const TensorRanks* ranks = pass.weights.tensor_ranks())
      return tensor_parallel_d_x(*ranks, key, dy, d_x, accumulate);
    ops::gemm_groups_dx(pass.backend,
                        {.x = dy, .w = weights(context, key), .rows = rows, .runs = lists.low_rank},
                        d_x, accumulate);
  }

  // d_x, which sums over the outputs of all tensor ranks.
  void tensor_parallel_d_x(const TensorRanks& ranks, MoeKey key, TensorView dy, TensorView d_x,
                           bool accumulate) const {
    const ParamView& matrix = context.param(key);
    const ParamRow& row = *pass.weights.table()[matrix.index].row;
    const Deal outputs = row.output_deal();
    const ExpertLists& lists = pass.lists.blocks.ensure_lists<ExpertLists>();
    const auto multiply = [&](const AxisPart&, const AxisPart& part, bool continues,
                              TensorView sums) {
      ops::GroupedArgs args = {.x = dy.slice_cols(part.first, part.end()),
                               .w = slice_rows(weights(context, key), part.first - row.first_output,
                                               part.end() - row.first_output),
                               .rows = rows};
      if (part.end() == outputs.size) args.runs = lists.low_rank;
      ops::gemm_groups_dx(pass.backend, args, sums, continues);
    };
    const DxChain chain = {.outputs = outputs,
                           .num_rows = dy.rows(),
                           .num_inputs = matrix.panel.cols,
                           .accumulate = accumulate,
                           .multiply = multiply};
    if (key != kMoeDown) return ranks.sum_over_outputs(pass, chain, d_x);
    ranks.sum_over_outputs_of_inputs(pass, chain, row.input_deal(), d_x);
  }

  void add_base_gradients(MoeKey key, TensorView dy) const {
    if (pass.base_gradients == nullptr) return;
    const ParamView& matrix = context.param(key);
    const int64_t first = pass.weights.table()[matrix.index].first_output;
    const int64_t count = matrix.panel.rows;
    const ops::GroupedGradient gradient = {.end = std::ssize(rows.sequence_ends),
                                           .dy = dy.slice_cols(first, first + count),
                                           .x = x,
                                           .dw = gradient_stack(pass, matrix.index, rows)};
    if (count > 0) ops::gemm_dw_groups(pass.backend, rows, {&gradient, 1});
    if (key == kMoeDown || !context.as<MoeConfig>().expert_bias) return;
    ops::group_bias_backward(pass.backend, rows,
                             {.d_bias = expert_bias_gradients(pass, context, rows, key)}, dy);
  }
};

MoeKey bias_key(MoeKey key) {
  CHECK(key == kMoeGate || key == kMoeUp || key == kMoeDown, key);
  return key == kMoeGate ? kMoeGateBias : key == kMoeUp ? kMoeUpBias : kMoeDownBias;
}

// Values of all ranks' outputs, or inputs, in scratch where there are tensor ranks.
TensorView gather_whole(Pass& pass, const BlockContext& context, MoeKey key, bool of_inputs,
                        TensorView own) {
  const TensorRanks* const ranks = pass.weights.tensor_ranks();
  if (ranks == nullptr) return own;
  const ParamRow& row = *pass.weights.table()[context.param(key).index].row;
  return ranks->gather_whole(pass, own, of_inputs ? row.input_deal() : row.output_deal());
}

// Those of a rank's outputs.
ops::TensorStack slice_values(const ops::TensorStack& stack, int64_t first, int64_t count) {
  if (stack.first.empty()) return stack;
  return {stack.first.part(first, {count}), stack.bytes};
}

}  // namespace

ops::TensorStack expert_biases(const BlockContext& context, MoeKey key) {
  const TensorView first = context.values(bias_key(key));
  return {first, first.empty() ? 0 : Arena::aligned(first.num_bytes())};
}

ops::TensorStack expert_bias_gradients(const Pass& pass, const BlockContext& context,
                                       const ops::GroupedRows& rows, MoeKey key) {
  const size_t index = context.param(bias_key(key)).index;
  if (pass.base_gradient(index).empty()) return {};
  return gradient_stack(pass, index, rows);
}

ExpertLoraH ExpertLoraH::first_rows(int64_t count) const {
  ExpertLoraH rows;
  for (size_t i = 0; i < h.size(); ++i)
    if (!h[i].empty()) rows.h[i] = h[i].slice_rows(0, count);
  return rows;
}

ExpertLoraH allocate_expert_lora_h(Pass& pass, const BlockContext& context) {
  ExpertLoraH lora_h;
  const int64_t rows = most_expert_rows(pass, context.as<MoeConfig>());
  for (size_t i = 0; i < lora_h.h.size(); ++i) {
    const int key = kMoeGate + static_cast<int>(i);
    const int64_t rank = largest_rank(pass.expert_rows(), context.layer, context.param(key).target);
    if (rank > 0) {
      lora_h.h[i] = pass.allocate_saved(kLoraTag, lora_flops(pass, context, key, rank),
                                        pass.dtype(), {rows, rank});
    }
  }
  return lora_h;
}

namespace {

void multiply_forward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                      MoeKey key, const ExpertLoraH& lora_h, TensorView x, TensorView y) {
  ExpertLists& lists = ExpertLists::get_cleared(pass);
  for_each_module(pass, context, key, [&](const AdapterSegment& run, const ModuleHalf& found) {
    append_forward_products(pass, lists, run, found, lora_h);
  });
  // h = round(scale * x A^T)
  if (!lists.own.empty()) {
    ops::gemm_group_runs(pass.backend, rows, x, lists.own, lora_h.of(key));
  }
  if (!lists.shared.empty()) {
    ops::gemm_group_runs(pass.backend, rows, x, lists.shared, lora_h.of(kMoeGateUp));
  }
  if (y.empty()) return;
  const ParamRow& row = *pass.weights.table()[context.param(key).index].row;
  const ops::TensorStack bias =
      key == kMoeDown ? ops::TensorStack()
                      : slice_values(expert_biases(context, key), row.first_output, y.cols());
  ops::gemm_groups(
      pass.backend,
      {.x = x, .w = weights(context, key), .rows = rows, .runs = lists.low_rank, .bias = bias}, y);
}

// x [n, k] and y [n, N] of down_proj are this tensor rank's inputs and all outputs, of which it
// makes its own; x [n, K] and y [n, m] of the others are all inputs and its outputs.
void tensor_parallel_forward(Pass& pass, const TensorRanks& ranks, const BlockContext& context,
                             const ops::GroupedRows& rows, MoeKey key, const ExpertLoraH& lora_h,
                             TensorView x, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ParamView& matrix = context.param(key);
  const ParamRow& row = *pass.weights.table()[matrix.index].row;
  if (key == kMoeDown) x = gather_whole(pass, context, key, /*of_inputs=*/true, x);
  const bool makes_more = key == kMoeDown || row.num_lead_outputs > 0;
  const TensorView made =
      y.empty() || !makes_more ? y : pass.take(y.dtype, {y.rows(), matrix.panel.rows});
  multiply_forward(pass, context, rows, key, lora_h, x, made);
  if (y.empty() || !makes_more) return;
  const TensorView own_y = made.slice_cols(row.num_lead_outputs, made.cols());
  if (key != kMoeDown) return ops::copy(pass.backend, own_y, y);
  ranks.gather_columns(pass, own_y, row.output_deal(), y);
}

}  // namespace

void expert_linear_forward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                           MoeKey key, const ExpertLoraH& lora_h, TensorView x, TensorView y) {
  y = pass.unless_computed(y);
  if (y.empty() && is_all_computed(pass, lora_h)) return;
  const TensorRanks* const ranks = pass.weights.tensor_ranks();
  if (ranks == nullptr) return multiply_forward(pass, context, rows, key, lora_h, x, y);
  tensor_parallel_forward(pass, *ranks, context, rows, key, lora_h, x, y);
}

void expert_down_backward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                          const ExpertLoraH& lora_h, TensorView x, TensorView dy, TensorView d_x) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView whole_x = gather_whole(pass, context, kMoeDown, /*of_inputs=*/true, x);
  const Backward backward{pass, context, rows, lora_h, whole_x, {}};
  backward.projection_backward(kMoeDown, dy, d_x, /*accumulate=*/false);
}

void expert_gate_up_backward(Pass& pass, const BlockContext& context, const ops::GroupedRows& rows,
                             const ExpertLoraH& lora_h, TensorView x, TensorView d_gate,
                             TensorView d_up, TensorView d_x) {
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView h = lora_h.of(kMoeGateUp);
  const TensorView shared = h.empty() ? TensorView() : pass.take(DType::kF32, h.shape);
  const Backward backward{pass, context, rows, lora_h, x, shared};
  for (const MoeKey key : {kMoeGate, kMoeUp}) {
    const Scratch::Mark inner(pass.backend.scratch());
    const TensorView dy = key == kMoeGate ? d_gate : d_up;
    backward.projection_backward(key, gather_whole(pass, context, key, /*of_inputs=*/false, dy),
                                 d_x, /*accumulate=*/key == kMoeUp);
  }
}

}  // namespace strata::model
