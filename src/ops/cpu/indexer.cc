// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

// Scores are made so many at a time: memory does not grow with the sequence.
constexpr int64_t kScoreBlock = 1024;

struct Candidate {
  float score;
  int32_t id;
  // The order is total, so that the best are the same however they are found.
  [[nodiscard]] bool is_before(const Candidate& other) const {
    return score != other.score ? score > other.score : id < other.id;
  }
};

// Memory of one worker.
struct Work {
  float* scores;     // [kScoreBlock]
  Candidate* found;  // [K + kScoreBlock]
};

// Leaves the best `top_k` of `count` candidates in front.
void keep_best(Candidate* found, int64_t count, int64_t top_k) {
  std::nth_element(found, found + top_k, found + count,
                   [](const Candidate& a, const Candidate& b) { return a.is_before(b); });
}

IndexerKernel kernel_args_of(const IndexerArgs& args, int64_t row) {
  const int64_t heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  return {
      .type = args.q.dtype,
      .q = static_cast<const char*>(args.q.data) + row * heads * width * dtype_bytes(args.q.dtype),
      .weights = args.weights.f32() + row * heads,
      .num_heads = heads,
      .width = width};
}

// A score that is not a number comes last.
void write_candidates(const float* scores, int64_t count, int64_t first_id, Candidate* to) {
  for (int64_t i = 0; i < count; ++i) {
    const float score = std::isnan(scores[i]) ? -std::numeric_limits<float>::infinity() : scores[i];
    to[i] = {score, static_cast<int32_t>(first_id + i)};
  }
}

// Candidates for entries [begin, begin + count) of a range, at most kScoreBlock of them.
template <typename V>
void score_entries(const IndexerKernel& kernel, const KvRange& range, int64_t stride, int64_t begin,
                   int64_t count, float* scores, Candidate* to) {
  const auto* keys = static_cast<const char*>(range.keys) +
                     (begin - range.begin) * stride * dtype_bytes(kernel.type);
  compute_index_scores<V>(kernel, keys, stride, count, scores);
  write_candidates(scores, count, begin, to);
}

// Leaves the best of the first `count` entries in front of work.found; there are more than top_k.
template <typename V>
void collect_best_entries(const IndexerArgs& args, const IndexerSegment& segment, int64_t row,
                          int64_t count, const Work& work) {
  const IndexerKernel kernel = kernel_args_of(args, row);
  int64_t num_found = 0;
  for (const KvRange& range : segment.keys.ranges) {
    const int64_t end = std::min(range.end, count);
    for (int64_t begin = range.begin; begin < end; begin += kScoreBlock) {
      const int64_t num_scores = std::min(kScoreBlock, end - begin);
      score_entries<V>(kernel, range, segment.keys.position_stride, begin, num_scores, work.scores,
                       work.found + num_found);
      num_found += num_scores;
      if (num_found <= args.top_k) continue;
      keep_best(work.found, num_found, args.top_k);
      num_found = args.top_k;
    }
  }
}

template <typename V>
void select_entries_of_row(const IndexerArgs& args, const IndexerSegment& segment, int64_t row,
                           const Work& work, int32_t* selected) {
  const int64_t count = args.num_entries(segment, row);
  if (count <= args.top_k) {
    for (int64_t k = 0; k < args.top_k; ++k) selected[k] = k < count ? static_cast<int32_t>(k) : -1;
    return;
  }
  collect_best_entries<V>(args, segment, row, count, work);
  for (int64_t k = 0; k < args.top_k; ++k) selected[k] = work.found[k].id;
  std::sort(selected, selected + args.top_k);
}

}  // namespace

void select_entries(CpuBackend& backend, const IndexerArgs& args, IndexView<int32_t> selected) {
  const HostAccess access(backend.allocator());
  const Scratch::Mark mark(backend.scratch());
  const int num_workers = backend.pool().num_threads();
  const int64_t most = args.top_k + kScoreBlock;
  float* scores = backend.scratch().take(DType::kF32, {num_workers, kScoreBlock}).f32();
  auto* found = static_cast<Candidate*>(
      backend.scratch().take(num_workers * most * static_cast<int64_t>(sizeof(Candidate))));
  with_path(backend.path(), [&]<typename V>() {
    for (const IndexerSegment& segment : args.segments) {
      backend.pool().run_each(segment.end - segment.begin, [&](int64_t i, int worker) {
        const int64_t row = segment.begin + i;
        select_entries_of_row<V>(args, segment, row,
                                 {scores + worker * kScoreBlock, found + worker * most},
                                 selected.numbers().data() + row * args.top_k);
      });
    }
  });
}

}  // namespace strata::ops::cpu
