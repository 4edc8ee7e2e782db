// SPDX-License-Identifier: Apache-2.0
#include "ops/indexer_loss.h"

#include "ops/checks.h"
#include "ops/rows.h"
#include "ops/stage.h"

namespace strata::ops {
namespace {

void check_dense(const TensorView& view, DType type, const Shape& shape) {
  CHECK(view.dtype == type && view.dense() && view.shape == shape, view.dtype,
        view.shape.to_string(), shape.to_string());
}

void check_queries(const TensorView& q) {
  CHECK(is_float(q.dtype) && q.dense() && q.shape.rank() == 3, q.dtype, q.shape.to_string());
}

}  // namespace

void indexer_loss(Backend& backend, const IndexerLossArgs& args, std::span<float> losses,
                  const IndexerGradients& gradients) {
  const ListedAttention& attention = args.attention;
  check_queries(args.q);
  check_queries(attention.q);
  const int64_t tokens = args.q.shape[0];
  const int64_t entries = args.keys.shape[0];
  const Shape weights = {tokens, args.q.shape[1]};
  check_dense(args.weights, DType::kF32, weights);
  check_dense(args.keys, args.q.dtype, {entries, args.q.shape[2]});
  CHECK(attention.q.shape[0] == tokens, attention.q.shape.to_string(), tokens);
  check_dense(attention.entries, attention.q.dtype, {entries, attention.q.shape[2]});
  check_dense(attention.lse, DType::kF32, {tokens, attention.q.shape[1]});
  check_dense(gradients.d_q, DType::kF32, args.q.shape);
  check_dense(gradients.d_weights, DType::kF32, weights);
  check_dense(gradients.d_keys, DType::kF32, args.keys.shape);
  CHECK(args.ratio >= 1 && attention.top_k >= 1, args.ratio, attention.top_k);
  CHECK(attention.selected.size() == tokens * attention.top_k, attention.selected.size());
  CHECK(std::ssize(losses) == tokens, losses.size(), tokens);
  for (const EntrySegment& s : args.segments) {
    if (backend.is_counting()) break;
    CHECK(0 <= s.begin && s.begin <= s.end && s.end <= tokens, s.begin, s.end, tokens);
    CHECK(s.first_entry + (s.end - s.begin) / args.ratio <= entries, s.first_entry, entries);
  }
  backend.call()->indexer_loss.run(backend, with_staged_segments(backend, args), losses, gradients);
}

}  // namespace strata::ops
