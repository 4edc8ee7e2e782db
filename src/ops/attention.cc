// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_activation(const TensorView& view, const AttentionArgs& args, int64_t num_heads,
                      int64_t width) {
  CHECK(view.shape.rank() == 3 && view.dense(), view.shape.to_string(), view.row_stride);
  CHECK(view.shape[0] == args.q.shape[0] && view.shape[1] == num_heads && view.shape[2] == width,
        view.shape.to_string(), args.q.shape.to_string(), num_heads, width);
  CHECK(is_float(view.dtype), view.dtype);
}

void check_lse(const TensorView& lse, const AttentionArgs& args) {
  CHECK(lse.dtype == DType::kF32 && lse.dense() && lse.shape.rank() == 2 &&
            lse.shape[0] == args.q.shape[0] && lse.shape[1] == args.q.shape[1],
        lse.shape.to_string(), args.q.shape.to_string());
}

void check_per_head(const TensorView& view, const AttentionArgs& args) {
  CHECK(view.dtype == DType::kF32 && view.dense() && view.shape == Shape{args.q.shape[1]},
        view.dtype, view.shape.to_string(), args.q.shape.to_string());
}

void check_segment(const AttentionSegment& segment, const AttentionArgs& args) {
  CHECK(0 <= segment.begin && segment.begin <= segment.end && segment.end <= args.q.shape[0],
        segment.begin, segment.end, args.q.shape[0]);
  if (segment.begin == segment.end) return;
  const int64_t num_keys = segment.first_position + segment.end - segment.begin;
  CHECK(segment.first_position >= 0, segment.first_position);
  const int64_t width = std::max(args.key_width(), args.value_width());
  int64_t seen = args.first_key(segment.first_position);  // the first that no range has yet
  int64_t last_end = 0;
  for (const KvRange& range : segment.kv.ranges) {
    CHECK(last_end <= range.begin && range.begin < range.end, last_end, range.begin, range.end);
    CHECK(range.begin <= seen || seen >= num_keys, range.begin, seen, num_keys);
    CHECK(range.end == range.begin + 1 || segment.kv.position_stride >= args.num_kv_heads * width,
          segment.kv.position_stride, args.num_kv_heads, width);
    last_end = range.end;
    seen = std::max(seen, range.end);
  }
  CHECK(seen >= num_keys, seen, num_keys);
}

void check_args(const AttentionArgs& args, const TensorView& out) {
  CHECK(args.q.shape.rank() == 3, args.q.shape.to_string());
  CHECK(args.value_dim >= 0 && args.window >= 0, args.value_dim, args.window);
  CHECK(!args.in_chunks || args.window > 0, args.window);
  CHECK(args.score_cap >= 0.0f, args.score_cap);
  check_activation(args.q, args, args.q.shape[1], args.key_width());
  check_activation(out, args, args.q.shape[1], args.value_width());
  CHECK(out.dtype == args.q.dtype, out.dtype, args.q.dtype);
  CHECK(args.num_kv_heads > 0 && args.q.shape[1] % args.num_kv_heads == 0, args.q.shape[1],
        args.num_kv_heads);
  if (!args.sinks.empty()) check_per_head(args.sinks, args);
  for (const AttentionSegment& segment : args.segments) check_segment(segment, args);
}

AttentionArgs staged(Backend& backend, const AttentionArgs& args) {
  return with_staged_segments(backend, args, [&](AttentionSegment& segment) {
    segment.kv.ranges = stage_list(backend, segment.kv.ranges);
  });
}

}  // namespace

void attention(Backend& backend, const AttentionArgs& args, TensorView out, TensorView lse) {
  check_args(args, out);
  if (!lse.empty()) check_lse(lse, args);
  backend.call()->attention.forward(backend, staged(backend, args), out, lse);
}

void attention_backward(Backend& backend, const AttentionArgs& args, TensorView out, TensorView lse,
                        TensorView d_out, TensorView d_q, TensorView d_k, TensorView d_v,
                        TensorView d_sinks) {
  check_args(args, out);
  check_lse(lse, args);
  check_activation(d_out, args, args.q.shape[1], args.value_width());
  CHECK(d_out.dtype == args.q.dtype, d_out.dtype, args.q.dtype);
  check_activation(d_q, args, args.q.shape[1], args.key_width());
  check_activation(d_k, args, args.num_kv_heads, args.key_width());
  check_activation(d_v, args, args.num_kv_heads, args.value_width());
  if (!d_sinks.empty()) {
    CHECK(!args.sinks.empty());
    check_per_head(d_sinks, args);
  }
  for (const AttentionSegment& segment : args.segments) {
    CHECK(segment.first_position == 0, segment.first_position);
  }
  backend.call()->attention.backward(backend, staged(backend, args),
                                     {.out = out,
                                      .lse = lse,
                                      .d_out = d_out,
                                      .d_q = d_q,
                                      .d_k = d_k,
                                      .d_v = d_v,
                                      .d_sinks = d_sinks});
}

}  // namespace strata::ops
