// SPDX-License-Identifier: Apache-2.0
// In blocks of queries. First, query by query: the target, the loss, its slope for each score, and
// the gradients of the query. Then, entry by entry, the sums over the block's queries, of which one
// worker has all: their order is the queries' own.
#include "ops/cpu/indexer_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/dispatch.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kQueries = 64;  // of a block; how many moves no bit
constexpr int64_t kKeys = 16;     // that a head meets in turn, so that they stay near

// Memory of one worker.
struct Work {
  float* dots;       // [entries, heads], of attention or of the indexer
  double* target;    // [entries]
  double* scores;    // [entries]
  double* log_sums;  // [N]
  char* listed;      // [entries]
};

struct WorkSizes {
  int64_t entries = 1;  // of a segment, at most
  int64_t attention_heads = 0;
  int64_t heads = 0;  // of attention or of the indexer, whichever has more

  explicit WorkSizes(const IndexerLossArgs& args)
      : attention_heads(args.attention.q.shape[1]),
        heads(std::max(args.q.shape[1], attention_heads)) {
    for (const EntrySegment& s : args.segments)
      entries = std::max(entries, (s.end - s.begin) / args.ratio);
  }
};

template <typename T>
T* take_values(CpuBackend& backend, int64_t count) {
  return static_cast<T*>(backend.scratch().take(count * static_cast<int64_t>(sizeof(T))));
}

// That of all workers.
Work take_all_workspaces(CpuBackend& backend, const WorkSizes& sizes) {
  const int64_t num_workers = backend.pool().num_threads();
  return {.dots = take_values<float>(backend, num_workers * sizes.entries * sizes.heads),
          .target = take_values<double>(backend, num_workers * sizes.entries),
          .scores = take_values<double>(backend, num_workers * sizes.entries),
          .log_sums = take_values<double>(backend, num_workers * sizes.attention_heads),
          .listed = take_values<char>(backend, num_workers * sizes.entries)};
}

Work workspace_of_worker(const Work& all, const WorkSizes& sizes, int worker) {
  return {.dots = all.dots + worker * sizes.entries * sizes.heads,
          .target = all.target + worker * sizes.entries,
          .scores = all.scores + worker * sizes.entries,
          .log_sums = all.log_sums + worker * sizes.attention_heads,
          .listed = all.listed + worker * sizes.entries};
}

QueryHeads heads_of(const TensorView& q, int64_t row) {
  const int64_t bytes = q.shape[1] * q.shape[2] * dtype_bytes(q.dtype);
  return {.type = q.dtype,
          .q = static_cast<const char*>(q.data) + row * bytes,
          .num_heads = q.shape[1],
          .width = q.shape[2]};
}

const void* head_of(const QueryHeads& query, int64_t n) {
  return static_cast<const char*>(query.q) + n * query.width * dtype_bytes(query.type);
}

// A dot that is in its score; a comparison that lets NaN through.
bool is_scored(float dot) { return !(dot <= 0.0f); }

double log_sum_exp(const double* values, int64_t count) {
  const double top = *std::max_element(values, values + count);
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(values[i] - top);
  return top + std::log(sum);
}

struct Loss {
  const IndexerLossArgs& args;
  std::span<float> losses;
  const IndexerGradients& gradients;
  int64_t most;   // entries of a segment, at most
  float* slopes;  // [kQueries, most]: of a block's scores, times the scale

  [[nodiscard]] int64_t num_entries(int64_t position) const { return (position + 1) / args.ratio; }

  template <typename V>
  void compute_query_entry_dots(const QueryHeads& query, const TensorView& keys,
                                const EntrySegment& segment, int64_t count, float* dots) const {
    for (int64_t i = 0; i < count; i += kKeys)
      compute_query_key_dots<V>(query, keys.row(segment.first_entry + i),
                                std::min(kKeys, count - i), dots + i * query.num_heads);
  }

  void mark_listed(int64_t row, int64_t count, char* listed) const {
    const ListedAttention& a = args.attention;
    std::fill_n(listed, count, static_cast<char>(count <= a.top_k));
    if (count <= a.top_k) return;
    for (int64_t k = 0; k < a.top_k; ++k)
      listed[a.selected.numbers()[static_cast<size_t>(row * a.top_k + k)]] = 1;
  }

  [[nodiscard]] double score(const Work& work, int64_t i, int64_t n) const {
    const auto dot = static_cast<double>(work.dots[i * args.attention.q.shape[1] + n]);
    return static_cast<double>(args.attention.scale) * dot;
  }

  // lse of head n over all that it sees: to what it attended (lse) comes what was not listed.
  [[nodiscard]] double compute_head_lse(int64_t row, int64_t n, int64_t count,
                                        const Work& work) const {
    const ListedAttention& a = args.attention;
    const auto lse = static_cast<double>(a.lse.f32()[row * a.q.shape[1] + n]);
    double top = lse;
    for (int64_t i = 0; i < count; ++i)
      if (work.listed[i] == 0) top = std::max(top, score(work, i, n));
    double sum = std::exp(lse - top);
    for (int64_t i = 0; i < count; ++i)
      if (work.listed[i] == 0) sum += std::exp(score(work, i, n) - top);
    return top + std::log(sum);
  }

  // log_sum_n of every head; returns the largest s_ni - log_sum_n.
  double compute_log_sums_and_top(int64_t row, int64_t count, const Work& work) const {
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t n = 0; n < args.attention.q.shape[1]; ++n) {
      work.log_sums[n] = compute_head_lse(row, n, count, work);
      for (int64_t i = 0; i < count; ++i) top = std::max(top, score(work, i, n) - work.log_sums[n]);
    }
    return top;
  }

  // e^-top sum_n a_n(i)
  [[nodiscard]] double compute_attention_to(int64_t i, double top, const Work& work) const {
    double sum = 0.0;
    for (int64_t n = 0; n < args.attention.q.shape[1]; ++n)
      sum += std::exp(score(work, i, n) - work.log_sums[n] - top);
    return sum;
  }

  // target(i) = sum_n a_n(i) / sum_j sum_n a_n(j), where a_n(i) = exp(s_ni - log_sum_n): all of it
  // times e^-top, against underflow, where the window has nearly all.
  template <typename V>
  void compute_target(const EntrySegment& segment, int64_t row, int64_t count,
                      const Work& work) const {
    const QueryHeads query = heads_of(args.attention.q, row);
    compute_query_entry_dots<V>(query, args.attention.entries, segment, count, work.dots);
    mark_listed(row, count, work.listed);
    const double top = compute_log_sums_and_top(row, count, work);
    double total = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      work.target[i] = compute_attention_to(i, top, work);
      total += work.target[i];
    }
    for (int64_t i = 0; i < count; ++i) work.target[i] /= total;
  }

  // Makes the indexer's scores from its dots.
  void compute_scores(int64_t row, int64_t count, const Work& work) const {
    const int64_t heads = args.q.shape[1];
    const float* weights = args.weights.f32() + row * heads;
    for (int64_t i = 0; i < count; ++i) {
      double score = 0.0;
      for (int64_t h = 0; h < heads; ++h) {
        const float dot = work.dots[i * heads + h];
        if (is_scored(dot)) score += static_cast<double>(weights[h]) * static_cast<double>(dot);
      }
      work.scores[i] = static_cast<double>(args.scale) * score;
    }
  }

  // From the scores to the slope of each; adds to the row's loss.
  void compute_loss_slopes(int64_t row, int64_t count, const Work& work, float* slope) const {
    const auto scale = static_cast<double>(args.scale);
    const double log_sum = log_sum_exp(work.scores, count);
    double loss = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      const double p = work.target[i];
      const double log_share = work.scores[i] - log_sum;
      if (p != 0.0) loss += p * (std::log(p) - log_share);
      slope[i] =
          static_cast<float>(static_cast<double>(args.weight) * scale * (std::exp(log_share) - p));
    }
    losses[static_cast<size_t>(row)] += static_cast<float>(loss);
  }

  // score = scale sum_h w_h max(0, q_h . k)
  template <typename V>
  void query_backward(const EntrySegment& segment, int64_t row, int64_t count, const float* slope,
                      const float* dots) const {
    const int64_t heads = args.q.shape[1];
    const int64_t width = args.q.shape[2];
    const float* weights = args.weights.f32() + row * heads;
    float* d_weights = gradients.d_weights.f32() + row * heads;
    float* d_q = gradients.d_q.f32() + row * heads * width;
    std::fill_n(d_weights, heads, 0.0f);
    std::fill_n(d_q, heads * width, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const void* key = args.keys.row(segment.first_entry + i);
      for (int64_t h = 0; h < heads; ++h) {
        const float dot = dots[i * heads + h];
        if (!is_scored(dot)) continue;
        d_weights[h] += slope[i] * dot;
        axpy<V>(args.keys.dtype, slope[i] * weights[h], key, width, d_q + h * width);
      }
    }
  }

  template <typename V>
  void query_loss_and_backward(const EntrySegment& segment, int64_t row, float* slope,
                               const Work& work) const {
    int64_t count = num_entries(row - segment.begin);
    std::fill_n(slope, count, 0.0f);
    if (count < 2) count = 0;  // nothing to learn, and no slope
    if (count > 0) {
      compute_target<V>(segment, row, count, work);
      compute_query_entry_dots<V>(heads_of(args.q, row), args.keys, segment, count, work.dots);
      compute_scores(row, count, work);
      compute_loss_slopes(row, count, work, slope);
    }
    query_backward<V>(segment, row, count, slope, work.dots);
  }

  // Adds d_key of entry i, over the queries [first, last) that see it.
  template <typename V>
  void add_d_key(const EntrySegment& segment, int64_t i, int64_t block, int64_t first, int64_t last,
                 float* dots) const {
    const int64_t heads = args.q.shape[1];
    const int64_t width = args.q.shape[2];
    float* d_key = gradients.d_keys.f32() + (segment.first_entry + i) * width;
    for (int64_t row = first; row < last; ++row) {
      const float slope = slopes[(row - block) * most + i];
      if (slope == 0.0f) continue;
      const QueryHeads query = heads_of(args.q, row);
      const float* weights = args.weights.f32() + row * heads;
      compute_query_key_dots<V>(query, args.keys.row(segment.first_entry + i), 1, dots);
      for (int64_t h = 0; h < heads; ++h) {
        if (!is_scored(dots[h])) continue;
        axpy<V>(query.type, slope * weights[h], head_of(query, h), width, d_key);
      }
    }
  }
};

// One block of queries: their losses and gradients, then those of the entries that they see.
template <typename V>
void block_loss_and_backward(CpuBackend& backend, const Loss& loss, const EntrySegment& segment,
                             int64_t block, const Work& all, const WorkSizes& sizes) {
  const int64_t last = std::min(segment.end, block + kQueries);
  backend.pool().run_each(last - block, [&](int64_t i, int worker) {
    loss.query_loss_and_backward<V>(segment, block + i, loss.slopes + i * loss.most,
                                    workspace_of_worker(all, sizes, worker));
  });
  const int64_t num_entries = loss.num_entries(last - 1 - segment.begin);
  backend.pool().run_each(num_entries, [&](int64_t i, int worker) {
    const int64_t sees =
        segment.begin + (i + 1) * loss.args.ratio - 1;  // the first query that does
    loss.add_d_key<V>(segment, i, block, std::max(block, sees), last,
                      workspace_of_worker(all, sizes, worker).dots);
  });
}

}  // namespace

void indexer_loss(CpuBackend& backend, const IndexerLossArgs& args, std::span<float> losses,
                  const IndexerGradients& gradients) {
  const HostAccess access(backend.allocator());
  const Scratch::Mark mark(backend.scratch());
  const WorkSizes sizes(args);
  const int64_t most = sizes.entries;
  const Loss loss = {args, losses, gradients, most, take_values<float>(backend, kQueries * most)};
  const Work all = take_all_workspaces(backend, sizes);
  if (backend.is_counting()) return;
  std::fill_n(gradients.d_keys.f32(), gradients.d_keys.shape.num_elements(), 0.0f);
  with_path(backend.path(), [&]<typename V>() {
    for (const EntrySegment& s : args.segments) {
      for (int64_t block = s.begin; block < s.end; block += kQueries) {
        block_loss_and_backward<V>(backend, loss, s, block, all, sizes);
      }
    }
  });
}

}  // namespace strata::ops::cpu
