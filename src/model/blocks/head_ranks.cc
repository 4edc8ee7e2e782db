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
                                       TensorView d_y, TensorView d_raw) {
  const Scratch::Mark mark(pass.backend.scratch());
  const AxisPart own = columns.part_of(ranks.share());
  const TensorView whole = ranks.gather_whole(pass, flat(raw), columns);
  const TensorView whole_d_y = ranks.gather_whole(pass, flat(d_y), columns);
  const TensorView d = pass.take(DType::kF32, whole.shape);
  ops::fill_zero(pass.backend, d);
  ops::rms_norm_backward(pass.backend, norm(whole), {}, whole_d_y, d, {});
  ops::copy(pass.backend, d.slice_cols(own.first, own.end()), flat(d_raw));
}

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
  ops::attention_backward(pass.backend, args, context, lse, d_context, d_q, gradients.d_k,
                          gradients.d_v);
  const int64_t first = (own.first - group.first) * width;
  ops::copy(pass.backend, flat(d_q).slice_cols(first, first + own.count * width),
            flat(gradients.d_q));
}

}  // namespace strata::model
