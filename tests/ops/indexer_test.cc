// SPDX-License-Identifier: Apache-2.0
// The indexer's choice against a plain double reference; ties, few entries, ranges.
#include "ops/indexer.h"

#include <algorithm>
#include <numeric>

#include "tests/ops/indices.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

constexpr DType kF32 = DType::kF32;

struct Case {
  int64_t tokens, first_position, heads, width, ratio, top_k;
  DType type = kF32;
};

const Case kCases[] = {{1, 0, 1, 1, 1, 1},
                       {40, 0, 3, 20, 4, 3},
                       {9, 100, 5, 33, 3, 7},
                       {3, 6000, 2, 16, 4, 50},
                       {30, 20, 4, 64, 2, 6, DType::kBF16}};

struct Inputs {
  Buffer q, weights, keys;
  explicit Inputs(const Case& c)
      : q(random_buffer(c.type, {c.tokens, c.heads, c.width}, {.seed = 1})),
        weights(random_buffer(kF32, {c.tokens, c.heads}, {.seed = 2})),
        keys(random_buffer(c.type, {(c.first_position + c.tokens) / c.ratio + 2, c.width},
                           {.seed = 3})) {}
};

std::vector<int32_t> run(Backend& backend, const Case& c, const Inputs& in,
                         const std::vector<KvRange>& ranges, int64_t stride) {
  std::vector<int32_t> selected(static_cast<size_t>(c.tokens * c.top_k), -7);
  const IndexerSegment segment = {.begin = 0,
                                  .end = c.tokens,
                                  .first_position = c.first_position,
                                  .keys = {.ranges = ranges, .position_stride = stride}};
  select_entries(backend,
                 {.q = in.q,
                  .weights = in.weights,
                  .segments = {&segment, 1},
                  .ratio = c.ratio,
                  .top_k = c.top_k},
                 indices(selected));
  return selected;
}

std::vector<int32_t> run(Backend& backend, const Case& c, const Inputs& in) {
  const std::vector<KvRange> ranges = {
      {in.keys.view().data, in.keys.view().data, 0, in.keys.view().shape[0]}};
  return run(backend, c, in, ranges, c.width);
}

std::vector<double> scores_of(const Case& c, const Inputs& in, int64_t t, int64_t count) {
  std::vector<double> scores(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t n = 0; n < c.heads; ++n) {
      double dot = 0;
      for (int64_t h = 0; h < c.width; ++h) {
        dot += in.q.get((t * c.heads + n) * c.width + h) * in.keys.get(i * c.width + h);
      }
      scores[static_cast<size_t>(i)] += in.weights.get(t * c.heads + n) * std::max(0.0, dot);
    }
  }
  return scores;
}

TEST(Indexer, ChoosesTheBestThatAreSeen) {
  for (const CpuPath path : supported_paths()) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(c.ratio);
      CpuBackend backend(path, 3);
      const Inputs in(c);
      const auto selected = run(backend, c, in);
      for (int64_t t = 0; t < c.tokens; ++t) {
        const int64_t count = (c.first_position + t + 1) / c.ratio;
        const auto scores = scores_of(c, in, t, count);
        std::vector<int32_t> want(static_cast<size_t>(count));
        std::iota(want.begin(), want.end(), 0);
        std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
          return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
        });
        if (count > c.top_k) {
          // Nothing here is closer than rounding, but for scores of zero, which are exact.
          const double last = scores[static_cast<size_t>(want[static_cast<size_t>(c.top_k - 1)])];
          const double next = scores[static_cast<size_t>(want[static_cast<size_t>(c.top_k)])];
          ASSERT_TRUE(last - next > 1e-5 || (last == 0 && next == 0)) << last << " " << next;
        }
        want.resize(static_cast<size_t>(std::min(count, c.top_k)));
        std::sort(want.begin(), want.end());
        want.resize(static_cast<size_t>(c.top_k), -1);
        EXPECT_EQ(std::vector<int32_t>(selected.begin() + t * c.top_k,
                                       selected.begin() + (t + 1) * c.top_k),
                  want)
            << t;
      }
    }
  }
}

// Keys in pages: what lies where does not matter.
TEST(Indexer, RangesDoNotMatter) {
  const Case c = kCases[2];
  CpuBackend backend(choose_cpu_path(), 2);
  const Inputs in(c);
  const int64_t count = in.keys.view().shape[0];
  Buffer pages = random_buffer(kF32, {2 * count, c.width + 3}, {.seed = 9});
  std::vector<KvRange> ranges;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t h = 0; h < c.width; ++h) {
      pages.set((2 * i + 1) * (c.width + 3) + h, in.keys.get(i * c.width + h));
    }
    void* row = pages.view().row(2 * i + 1);
    ranges.push_back({row, row, i, i + 1});
  }
  EXPECT_EQ(run(backend, c, in, ranges, 0), run(backend, c, in));
}

TEST(Indexer, EqualScoresGoToTheEarlierAndNanComesLast) {
  const Case c = {1, 9, 1, 2, 1, 3};
  CpuBackend backend(choose_cpu_path(), 1);
  Inputs in(c);
  for (int64_t i = 0; i < in.keys.size(); ++i) in.keys.set(i, 1);
  in.q.set_values({1, 1});
  in.weights.set_values({1});
  EXPECT_EQ(run(backend, c, in), (std::vector<int32_t>{0, 1, 2}));
  // No head turns to any key: all scores are zero.
  in.q.set_values({-1, -1});
  EXPECT_EQ(run(backend, c, in), (std::vector<int32_t>{0, 1, 2}));
  in.q.set_values({1, 1});
  in.keys.set(0, std::nan(""));
  in.keys.set(2 * 4, 5);
  EXPECT_EQ(run(backend, c, in), (std::vector<int32_t>{1, 2, 4}));
}

}  // namespace
}  // namespace strata::ops
