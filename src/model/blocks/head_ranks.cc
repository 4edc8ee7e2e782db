// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/head_ranks.h"

#include "model/blocks/head_views.h"
#include "model/residual.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

// Columns of these heads, of all heads' [T, ..], dense; in scratch.
TensorView copy_of_heads(const Pass& pass, TensorView whole, const AxisPart& heads, int64_t width) {
  const TensorView part = pass.take(whole.dtype, {whole.rows(), heads.count * width});
  ops::copy(pass.backend, whole.slice_cols(heads.first * width, heads.end() * width), part);
  return part;
}

}  // namespace

TensorView gather_heads_of_ranks(const Pass& pass, const TensorRanks& ranks, const Deal& heads,
                                 TensorView own) {
  const int64_t tokens = own.shape[0], width = own.cols();
  const TensorView dense = pass.take(own.dtype, own.shape);
  ops::copy(pass.backend, own, dense);
  const Deal columns = {.size = heads.size * width, .unit = width, .copied = heads.copied};
  return ranks.gather_whole(pass, flat(dense), columns).reshape({tokens, heads.size, width});
}

void add_to_heads_of_ranks(const Pass& pass, const TensorRanks& ranks, const Deal& heads,
                           TensorView sums, FunctionRef<void(TensorView own)> add) {
  if (sums.empty()) return add({});
  const Scratch::Mark mark(pass.backend.scratch());
  const AxisPart part = heads.part_of(ranks.share());
  const TensorView own = pass.take(DType::kF32, {part.count});
  ops::copy(pass.backend, sums.part(part.first, {part.count}), own);
  add(own);
  ranks.gather_columns(pass, own.reshape({1, part.count}), heads, sums.reshape({1, heads.size}));
}

void norm_over_heads_of_ranks(const Pass& pass, const TensorRanks& ranks, const Deal& columns,
                              TensorView raw, WholeNorm norm, TensorView y) {
  const Scratch::Mark mark(pass.backend.scratch());
  const AxisPart own = columns.part_of(ranks.share());
  const TensorView whole = ranks.gather_whole(pass, flat(raw), columns);
  ops::rms_norm(pass.backend, norm(whole), whole, {});
  ops::copy(pass.backend, whole.slice_cols(own.first, own.end()), flat(y));
}

void norm_over_heads_of_ranks_backward(const Pass& pass, const TensorRanks& ranks,
                                       const Deal& columns, TensorView raw, WholeNorm norm,
                                       TensorView d_y, TensorView d_raw, TensorView d_weight) {
  const Scratch::Mark mark(pass.backend.scratch());
  const AxisPart own = columns.part_of(ranks.share());
  const TensorView whole = ranks.gather_whole(pass, flat(raw), columns);
  const TensorView whole_d_y = ranks.gather_whole(pass, flat(d_y), columns);
  const TensorView d = pass.take(DType::kF32, whole.shape);
  ops::fill_zero(pass.backend, d);
  ops::rms_norm_backward(pass.backend, norm(whole), {}, whole_d_y, d, d_weight);
  ops::copy(pass.backend, d.slice_cols(own.first, own.end()), flat(d_raw));
}

namespace {

// add_to_heads_of_ranks() of what adds to all heads of a group, of which each rank gives its own.
void add_to_heads_of_groups(const Pass& pass, const TensorRanks& ranks, const QueryHeads& heads,
                            FunctionRef<void(TensorView of_group)> add) {
  if (heads.d_sinks.empty()) return add({});
  const Scratch::Mark mark(pass.backend.scratch());
  const AxisPart& group = heads.group;
  const TensorView of_group = pass.take(DType::kF32, {group.count});
  ops::copy(pass.backend, heads.d_sinks.part(group.first, {group.count}), of_group);
  add(of_group);
  const Deal all = {.size = heads.num_heads};
  const AxisPart own = all.part_of(ranks.share());
  add_to_heads_of_ranks(pass, ranks, all, heads.d_sinks, [&](TensorView sums) {
    ops::copy(pass.backend, of_group.part(own.first - group.first, {own.count}), sums);
  });
}

}  // namespace

void attention_backward_of_copies(const Pass& pass, const TensorRanks& ranks,
                                  const QueryHeads& heads, ops::AttentionArgs args,
                                  const AttentionGradients& gradients) {
  const Scratch::Mark mark(pass.backend.scratch());
  const int64_t tokens = args.q.shape[0], width = args.q.cols();
  const AxisPart& group = heads.group;
  const AxisPart own = Deal{.size = heads.num_heads}.part_of(ranks.share());
  const auto of_group = [&](TensorView values, int64_t columns) {
    const Deal deal = {.size = heads.num_heads * columns, .unit = columns};
    return copy_of_heads(pass, ranks.gather_whole(pass, values, deal), group, columns);
  };
  const Shape shape = {tokens, group.count, width};
  const Shape value_shape = {tokens, group.count, gradients.context.cols()};
  args.q = of_group(flat(args.q), width).reshape(shape);
  if (!heads.sinks.empty()) args.sinks = heads.sinks.part(group.first, {group.count});
  const TensorView context = of_group(flat(gradients.context), value_shape[2]).reshape(value_shape);
  const TensorView d_context =
      of_group(flat(gradients.d_context), value_shape[2]).reshape(value_shape);
  const TensorView lse = of_group(gradients.lse, 1);
  const TensorView d_q = pass.take(gradients.d_q.dtype, shape);
  add_to_heads_of_groups(pass, ranks, heads, [&](TensorView d_sinks) {
    ops::attention_backward(pass.backend, args, context, lse, d_context, d_q, gradients.d_k,
                            gradients.d_v, d_sinks);
  });
  const int64_t first = (own.first - group.first) * width;
  ops::copy(pass.backend, flat(d_q).slice_cols(first, first + own.count * width),
            flat(gradients.d_q));
}

}  // namespace strata::model
