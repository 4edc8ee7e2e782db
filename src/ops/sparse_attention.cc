// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse_attention.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_like_q(const TensorView& view, const SparseAttentionArgs& args) {
  CHECK(is_float(view.dtype) && view.dense() && view.shape == args.q.shape, view.dtype,
        view.shape.to_string(), args.q.shape.to_string());
}

// Ranges reach from `first` to `end` without a gap.
void check_ranges(const KvView& view, int64_t first, int64_t end, int64_t width) {
  int64_t seen = first;
  for (const KvRange& range : view.ranges) {
    CHECK(range.begin < range.end, range.begin, range.end);
    if (range.end <= seen || range.begin >= end) continue;
    CHECK(range.begin <= seen, range.begin, seen);
    CHECK(range.end == range.begin + 1 || view.position_stride >= width, view.position_stride);
    seen = range.end;
  }
  CHECK(seen >= end, seen, end, first);
}

void check_segment(const SparseSegment& segment, const SparseAttentionArgs& args) {
  CHECK(0 <= segment.begin && segment.begin <= segment.end && segment.end <= args.q.shape[0],
        segment.begin, segment.end, args.q.shape[0]);
  if (segment.begin == segment.end) return;
  CHECK(segment.first_position >= 0, segment.first_position);
  const int64_t end = segment.first_position + segment.end - segment.begin;
  check_ranges(segment.window, args.first_key(segment.first_position), end, args.width());
  check_ranges(segment.entries, 0, args.num_entries(end - 1), args.width());
}

void check_args(const Backend& backend, const SparseAttentionArgs& args, const TensorView& out) {
  CHECK(args.q.shape.rank() == 3, args.q.shape.to_string());
  check_like_q(args.q, args);
  check_like_q(out, args);
  CHECK(out.dtype == args.q.dtype, out.dtype, args.q.dtype);
  CHECK(args.sinks.dtype == DType::kF32 && args.sinks.shape == Shape{args.num_heads()},
        args.sinks.shape.to_string());
  CHECK(args.window >= 1 && args.ratio >= 0, args.window, args.ratio);
  CHECK(args.selected.empty() || args.selected.size() == args.q.shape[0] * args.top_k,
        args.selected.size(), args.top_k);
  if (backend.is_counting()) return;
  for (const SparseSegment& segment : args.segments) check_segment(segment, args);
}

void check_f32(const TensorView& view, const Shape& shape) {
  CHECK(view.dtype == DType::kF32 && view.dense() && view.shape == shape, view.dtype,
        view.shape.to_string(), shape.to_string());
}

// Segments start at position 0, and their entries are among the batch's.
void check_training_segments(const Backend& backend, const SparseAttentionArgs& args,
                             const TensorView& d_entries) {
  for (const SparseSegment& segment : args.segments) {
    CHECK(segment.first_position == 0, segment.first_position);
    CHECK(backend.is_counting() || segment.begin == segment.end ||
              segment.first_entry + args.num_entries(segment.end - segment.begin - 1) <=
                  (d_entries.empty() ? 0 : d_entries.rows()),
          segment.first_entry, segment.end - segment.begin, d_entries.shape.to_string());
  }
}

SparseAttentionArgs staged(Backend& backend, const SparseAttentionArgs& args) {
  return with_staged_segments(backend, args, [&](SparseSegment& segment) {
    segment.window.ranges = stage_list(backend, segment.window.ranges);
    segment.entries.ranges = stage_list(backend, segment.entries.ranges);
  });
}

}  // namespace

void sparse_attention(Backend& backend, const SparseAttentionArgs& args, TensorView out,
                      TensorView lse) {
  check_args(backend, args, out);
  if (!lse.empty()) check_f32(lse, {args.q.shape[0], args.num_heads()});
  backend.call()->sparse_attention.forward(backend, staged(backend, args), out, lse);
}

void sparse_attention_backward(Backend& backend, const SparseAttentionArgs& args, TensorView out,
                               TensorView lse, TensorView d_out, TensorView d_q, TensorView d_keys,
                               TensorView d_entries, TensorView d_sinks) {
  check_args(backend, args, out);
  check_like_q(d_out, args);
  CHECK(d_out.dtype == args.q.dtype, d_out.dtype, args.q.dtype);
  check_like_q(d_q, args);
  check_f32(lse, {args.q.shape[0], args.num_heads()});
  check_f32(d_keys, {args.q.shape[0], args.width()});
  CHECK(d_entries.empty() || (d_entries.dtype == DType::kF32 && d_entries.dense() &&
                              d_entries.cols() == args.width()),
        d_entries.shape.to_string());
  if (!d_sinks.empty()) check_f32(d_sinks, {args.num_heads()});
  check_training_segments(backend, args, d_entries);
  backend.call()->sparse_attention.backward(backend, staged(backend, args),
                                            {.out = out,
                                             .lse = lse,
                                             .d_out = d_out,
                                             .d_q = d_q,
                                             .d_keys = d_keys,
                                             .d_entries = d_entries},
                                            d_sinks);
}

}  // namespace strata::ops
