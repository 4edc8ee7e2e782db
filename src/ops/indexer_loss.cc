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

void check_attention(const ListedAttention& attention, int64_t tokens, int64_t entries) {
  check_queries(attention.q);
  CHECK(attention.q.shape[0] == tokens, attention.q.shape.to_string(), tokens);
  check_dense(attention.entries, attention.q.dtype, {entries, attention.q.shape[2]});
  check_dense(attention.lse, DType::kF32, {tokens, attention.q.shape[1]});
  CHECK(attention.selected.size() == tokens * attention.top_k, attention.selected.size());
}

void check_args(const Backend& backend, const IndexerLossArgs& args) {
  check_queries(args.q);
  const int64_t tokens = args.q.shape[0];
  const int64_t entries = args.keys.shape[0];
  check_dense(args.weights, DType::kF32, {tokens, args.q.shape[1]});
  check_dense(args.keys, args.q.dtype, {entries, args.q.shape[2]});
  CHECK(args.ratio >= 1 && args.attention.top_k >= 1, args.ratio, args.attention.top_k);
  check_attention(args.attention, tokens, entries);
  if (backend.is_counting()) return;
  for (const EntrySegment& s : args.segments) {
    CHECK(0 <= s.begin && s.begin <= s.end && s.end <= tokens, s.begin, s.end, tokens);
    CHECK(s.first_entry + (s.end - s.begin) / args.ratio <= entries, s.first_entry, entries);
  }
}

void check_gradients(const IndexerLossArgs& args, const IndexerGradients& gradients) {
  check_dense(gradients.d_q, DType::kF32, args.q.shape);
  check_dense(gradients.d_weights, DType::kF32, args.weights.shape);
  check_dense(gradients.d_keys, DType::kF32, args.keys.shape);
}

}  // namespace

void indexer_loss(Backend& backend, const IndexerLossArgs& args, std::span<float> losses,
                  const IndexerGradients& gradients) {
  check_args(backend, args);
  check_gradients(args, gradients);
  CHECK(std::ssize(losses) == args.q.shape[0], losses.size(), args.q.shape[0]);
  backend.call()->indexer_loss.run(backend, with_staged_segments(backend, args), losses, gradients);
}

}  // namespace strata::ops
