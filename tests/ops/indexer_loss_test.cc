// SPDX-License-Identifier: Apache-2.0
// The indexer's loss against the double reference, its gradients by the complex step; lists, blocks
// of queries, and what has no loss.
#include "ops/indexer_loss.h"

#include "ops/ref/indexer_loss.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, width;              // of attention
  int64_t index_heads, index_width;  // of the indexer
  int64_t ratio, top_k;
  int64_t window = 3;
  DType type = kF32;
  [[nodiscard]] int64_t tokens() const {
    int64_t sum = 0;
    for (const int64_t n : lengths) sum += n;
    return sum;
  }
  [[nodiscard]] int64_t entries() const {
    int64_t sum = 0;
    for (const int64_t n : lengths) sum += n / ratio;
    return sum;
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(width)); }
  [[nodiscard]] double index_scale() const {
    return 1 / std::sqrt(static_cast<double>(index_heads * index_width));
  }
};

const Case kCases[] = {{{}, 2, 16, 2, 16, 4, 2},
                       {{3, 1}, 2, 16, 2, 16, 4, 2},
                       {{8}, 1, 1, 1, 1, 4, 1},
                       {{30, 1, 9}, 3, 20, 5, 33, 4, 3},
                       {{70, 33}, 2, 17, 3, 12, 2, 20},
                       {{70}, 4, 32, 2, 8, 1, 100},
                       {{41, 20}, 3, 24, 4, 20, 3, 5, 6, kBF16}};

std::vector<double> slice(const Buffer& x, int64_t begin, int64_t count) {
  std::vector<double> out;
  for (int64_t i = begin; i < begin + count; ++i) out.push_back(x.get(i));
  return out;
}

struct Query {
  int64_t row = 0, first_entry = 0, count = 0;  // of visible entries
  std::vector<double> q = {}, weights = {}, keys = {}, target = {};
};

// Attention to random keys and entries, of which every query lists some; and what the reference
// makes of each query.
struct Batch {
  Case c;
  Buffer q, weights, keys, attention_q, entries, own_keys, lse;
  std::vector<double> sinks;
  std::vector<int32_t> selected;
  std::vector<EntrySegment> segments;
  std::vector<Query> queries;

  explicit Batch(const Case& of)
      : c(of),
        q(random_buffer(c.type, {c.tokens(), c.index_heads, c.index_width}, {.seed = 1})),
        weights(random_buffer(kF32, {c.tokens(), c.index_heads}, {.seed = 2, .scale = 3})),
        keys(random_buffer(c.type, {c.entries(), c.index_width}, {.seed = 3})),
        attention_q(random_buffer(c.type, {c.tokens(), c.heads, c.width}, {.seed = 4})),
        entries(random_buffer(c.type, {c.entries(), c.width}, {.seed = 5, .scale = 2})),
        own_keys(random_buffer(c.type, {c.tokens(), c.width}, {.seed = 6})),
        lse(kF32, {c.tokens(), c.heads}),
        sinks(slice(random_buffer(kF32, {c.heads}, {.seed = 7}), 0, c.heads)) {
    int64_t begin = 0, entry = 0;
    for (const int64_t n : c.lengths) {
      segments.push_back({begin, begin + n, entry});
      for (int64_t t = 0; t < n; ++t) add_query(begin, t, entry);
      begin += n;
      entry += n / c.ratio;
    }
  }

  void add_query(int64_t begin, int64_t t, int64_t first_entry) {
    const int64_t row = begin + t;
    const int64_t count = (t + 1) / c.ratio;
    std::vector<int32_t> listed;
    for (int64_t k = 0; k < std::min(count, c.top_k); ++k)
      listed.push_back(static_cast<int32_t>(count <= c.top_k ? k : k * count / c.top_k));
    const int64_t first_key = std::max<int64_t>(0, t - c.window + 1);
    const auto own = slice(own_keys, (begin + first_key) * c.width, (t + 1 - first_key) * c.width);
    const auto seen = slice(entries, first_entry * c.width, count * c.width);
    const auto heads = slice(attention_q, row * c.heads * c.width, c.heads * c.width);
    for (int64_t n = 0; n < c.heads; ++n) {
      double sum = std::exp(sinks[static_cast<size_t>(n)]);
      const auto add = [&](const std::vector<double>& rows, int64_t i) {
        double dot = 0;
        for (int64_t h = 0; h < c.width; ++h)
          dot += heads[static_cast<size_t>(n * c.width + h)] *
                 rows[static_cast<size_t>(i * c.width + h)];
        sum += std::exp(c.scale() * dot);
      };
      for (int64_t i = 0; i <= t - first_key; ++i) add(own, i);
      for (const int32_t i : listed) add(seen, i);
      lse.set(row * c.heads + n, std::log(sum));
    }
    listed.resize(static_cast<size_t>(c.top_k), -1);
    selected.insert(selected.end(), listed.begin(), listed.end());
    Query query = {.row = row, .first_entry = first_entry, .count = count};
    if (count >= 2) {
      query.q = slice(q, row * c.index_heads * c.index_width, c.index_heads * c.index_width);
      query.weights = slice(weights, row * c.index_heads, c.index_heads);
      query.keys = slice(keys, first_entry * c.index_width, count * c.index_width);
      query.target = ref::entry_target(heads, own, seen, sinks, c.scale());
    }
    queries.push_back(std::move(query));
  }

  [[nodiscard]] IndexerLossArgs args(double weight = 1) const {
    return {.q = q,
            .weights = weights,
            .keys = keys,
            .scale = static_cast<float>(c.index_scale()),
            .attention = {.q = attention_q,
                          .entries = entries,
                          .lse = lse,
                          .scale = static_cast<float>(c.scale()),
                          .selected = indices(selected),
                          .top_k = c.top_k},
            .segments = segments,
            .ratio = c.ratio,
            .weight = static_cast<float>(weight)};
  }

  // Losses, added to a half; d_q, d_weights, d_keys.
  [[nodiscard]] std::vector<Buffer> run(Backend& backend, double weight = 1) const {
    std::vector<Buffer> out = {filled_buffer(kF32, {c.tokens()}, 0.5), Buffer(kF32, q.view().shape),
                               Buffer(kF32, weights.view().shape), Buffer(kF32, keys.view().shape)};
    indexer_loss(backend, args(weight), {out[0].view().f32(), static_cast<size_t>(c.tokens())},
                 {.d_q = out[1], .d_weights = out[2], .d_keys = out[3]});
    return out;
  }
};

TEST(IndexerLoss, MatchesReferenceAndComplexStep) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.tokens());
    const Batch batch(c);
    const double weight = 0.375;
    const auto got = run_everywhere([&](Backend& backend) { return batch.run(backend, weight); });
    std::vector<double> losses, d_q, d_weights;
    std::vector<double> d_keys(static_cast<size_t>(c.entries() * c.index_width));
    using Complex = std::vector<std::complex<double>>;
    for (const Query& query : batch.queries) {
      if (query.count < 2) {
        losses.push_back(0.5);
        d_q.resize(d_q.size() + static_cast<size_t>(c.index_heads * c.index_width));
        d_weights.resize(d_weights.size() + static_cast<size_t>(c.index_heads));
        continue;
      }
      const Complex q = to_complex(query.q), w = to_complex(query.weights),
                    k = to_complex(query.keys);
      const auto step = [&](auto&& f, const std::vector<double>& x) {
        return complex_step([&](const Complex& v) { return Complex{f(v)}; }, x, {weight});
      };
      const auto& p = query.target;
      const double scale = c.index_scale();
      losses.push_back(0.5 + ref::indexer_loss(query.q, query.weights, query.keys, p, scale));
      const auto by_q =
          step([&](const Complex& v) { return ref::indexer_loss(v, w, k, p, scale); }, query.q);
      const auto by_w = step([&](const Complex& v) { return ref::indexer_loss(q, v, k, p, scale); },
                             query.weights);
      const auto by_k =
          step([&](const Complex& v) { return ref::indexer_loss(q, w, v, p, scale); }, query.keys);
      d_q.insert(d_q.end(), by_q.begin(), by_q.end());
      d_weights.insert(d_weights.end(), by_w.begin(), by_w.end());
      for (size_t i = 0; i < by_k.size(); ++i)
        d_keys[static_cast<size_t>(query.first_entry * c.index_width) + i] += by_k[i];
    }
    // Dots of so many terms make scores, whose error is that of the loss and, times about two for
    // a difference of shares, of the slopes; then chains over entries or queries.
    const int64_t terms = std::max(c.width, c.index_width) + c.tokens();
    const double limit = 4 * l2_tolerance(terms, kF32);
    EXPECT_LE(relative_l2(got[0].values(), losses), limit);
    EXPECT_LE(relative_l2(got[1].values(), d_q), limit);
    EXPECT_LE(relative_l2(got[2].values(), d_weights), limit);
    EXPECT_LE(relative_l2(got[3].values(), d_keys), limit);
  }
}

// Sequences together, and each alone.
TEST(IndexerLoss, ASequenceAmongOthersHasTheBitsOfOneAlone) {
  const Case together = {{30, 1, 70}, 3, 20, 5, 33, 4, 3};
  CpuBackend backend(choose_cpu_path(), 3);
  const Batch batch(together);
  const auto all = batch.run(backend);
  for (const EntrySegment& s : batch.segments) {
    IndexerLossArgs args = batch.args();
    args.segments = {&s, 1};
    std::vector<Buffer> out = {
        filled_buffer(kF32, {together.tokens()}, 0.5), Buffer(kF32, batch.q.view().shape),
        Buffer(kF32, batch.weights.view().shape), Buffer(kF32, batch.keys.view().shape)};
    indexer_loss(backend, args, {out[0].view().f32(), static_cast<size_t>(together.tokens())},
                 {.d_q = out[1], .d_weights = out[2], .d_keys = out[3]});
    const auto same = [&](size_t which, int64_t begin, int64_t end, int64_t width) {
      for (int64_t i = begin * width; i < end * width; ++i)
        ASSERT_EQ(out[which].get(i), all[which].get(i)) << which << " " << i;
    };
    same(0, s.begin, s.end, 1);
    same(1, s.begin, s.end, together.index_heads * together.index_width);
    same(2, s.begin, s.end, together.index_heads);
    same(3, s.first_entry, s.first_entry + (s.end - s.begin) / together.ratio,
         together.index_width);
  }
}

// Of an indexer that says what attention does nothing is left to learn: its scores are the logs of
// the target.
TEST(IndexerLoss, IsZeroWhereScoresAreTheTargets) {
  const Case c = {{12}, 1, 2, 1, 2, 4, 5};
  Batch batch(c);
  CpuBackend backend(choose_cpu_path(), 1);
  for (int64_t i = 0; i < batch.keys.size(); ++i) batch.keys.set(i, 0);
  const Query& last = batch.queries.back();
  for (int64_t i = 0; i < last.count; ++i)
    batch.keys.set(2 * i, (std::log(last.target[static_cast<size_t>(i)]) + 40) / c.index_scale());
  for (int64_t i = 0; i < batch.q.size(); ++i) batch.q.set(i, 1);
  for (int64_t i = 0; i < batch.weights.size(); ++i) batch.weights.set(i, 1);
  const auto got = batch.run(backend);
  EXPECT_NEAR(got[0].get(last.row), 0.5, 1e-6);
  EXPECT_GT(got[0].get(last.row - 4), 0.5);
}

// A window that has nearly all of the attention leaves a target all the same.
TEST(IndexerLoss, DoesNotUnderflow) {
  const Case c = {{12}, 2, 4, 2, 3, 4, 1};
  Batch batch(c);
  CpuBackend backend(choose_cpu_path(), 1);
  for (int64_t i = 0; i < batch.lse.size(); ++i) batch.lse.set(i, batch.lse.get(i) + 2000);
  const auto got = batch.run(backend);
  for (const Buffer& buffer : got) {
    for (int64_t i = 0; i < buffer.size(); ++i) EXPECT_TRUE(std::isfinite(buffer.get(i)));
  }
  EXPECT_GT(got[0].get(c.tokens() - 1), 0.5);
}

}  // namespace
}  // namespace strata::ops
