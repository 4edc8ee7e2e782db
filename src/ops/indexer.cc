// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_args(const Backend& backend, const IndexerArgs& args, size_t num_selected) {
  CHECK(is_float(args.q.dtype) && args.q.dense() && args.q.shape.rank() == 3, args.q.dtype,
        args.q.shape.to_string());
  CHECK(args.weights.dtype == DType::kF32 && args.weights.dense() &&
            args.weights.shape == (Shape{args.q.shape[0], args.q.shape[1]}),
        args.weights.shape.to_string());
  CHECK(args.ratio >= 1 && args.top_k >= 1, args.ratio, args.top_k);
  CHECK(static_cast<int64_t>(num_selected) == args.q.shape[0] * args.top_k, num_selected);
  if (backend.is_counting()) return;
  for (const IndexerSegment& segment : args.segments) {
    int64_t seen = 0;
    for (const KvRange& range : segment.keys.ranges) {
      CHECK(range.begin == seen && range.end > seen, range.begin, range.end, seen);
      seen = range.end;
    }
    CHECK(segment.begin == segment.end || seen >= args.num_entries(segment, segment.end - 1), seen,
          segment.first_position, segment.end - segment.begin);
  }
}

}  // namespace

void select_entries(Backend& backend, const IndexerArgs& args, IndexView<int32_t> selected) {
  check_args(backend, args, selected.size());
  const auto inside = [&](IndexerSegment& segment) {
    segment.keys.ranges = stage_list(backend, segment.keys.ranges);
  };
  backend.call()->indexer.select(backend, with_staged_segments(backend, args, inside), selected);
}

}  // namespace strata::ops
