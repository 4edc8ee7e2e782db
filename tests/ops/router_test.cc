// SPDX-License-Identifier: Apache-2.0
// The choice of experts against a plain double reference: groups, biases, norms, ties; and its
// gradient against the complex step.
#include "ops/router.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "ops/ref/router.h"
#include "tests/ops/indices.h"
#include "tests/ops/op_test.h"

namespace strata::ops {
namespace {

using namespace testing;  // NOLINT

struct Case {
  int64_t tokens, experts, top_k;
  RouterScores scores = RouterScores::kSoftmax;
  bool norm = false;
  double scale = 1.0;
  double bias = 0.0;  // mean of the biases; 0: none
  int64_t groups = 1, top_groups = 1;
  bool one_best = false;
};

const Case kCases[] = {
    {0, 4, 2},
    {1, 1, 1},
    {7, 5, 5},
    {40, 128, 8, RouterScores::kSoftmax, true},
    {9, 6, 2, RouterScores::kSoftmax, false},
    {30, 8, 3, RouterScores::kSigmoid, true, 2.5, -0.6, 4, 2},
    {30, 256, 8, RouterScores::kSigmoid, true, 2.5, -3.0, 8, 4},
    {11, 15, 4, RouterScores::kSigmoid, false, 1.0, 0.4, 3, 1},
    {30, 32, 6, RouterScores::kSoftmax, false, 16.0, 0.0, 8, 3, true},
    {30, 16, 4, RouterScores::kSqrtSoftplus, true, 1.5, -0.6},
    {9, 5, 2, RouterScores::kSqrtSoftplus, false, 2.5},
    {30, 16, 1, RouterScores::kLogit},
    {9, 5, 3, RouterScores::kLogit},
};

std::vector<double> scores_of(const RouterArgs& args, const Buffer& logits, int64_t token) {
  const int64_t experts = logits.view().cols();
  std::vector<double> row;
  for (int64_t i = 0; i < experts; ++i) row.push_back(logits.get(token * experts + i));
  return ref::router_scores(args.scores, row);
}

struct Routed {
  Buffer logits, scores, bias, weights;
  std::vector<int32_t> ids;
  RouterArgs args;

  Routed(Backend& backend, const Case& c, const Buffer& from)
      : logits(from),
        scores(from),
        bias(random_buffer(DType::kF32, {c.experts}, {.seed = 2, .scale = 0.2})),
        weights(DType::kF32, {c.tokens, c.top_k}),
        ids(static_cast<size_t>(c.tokens * c.top_k)) {
    for (int64_t i = 0; i < c.experts; ++i) bias.view().f32()[i] += static_cast<float>(c.bias);
    args = {.scores = c.scores,
            .top_k = c.top_k,
            .norm = c.norm,
            .scale = c.scale,
            .bias = c.bias == 0.0 ? TensorView() : bias.view(),
            .num_groups = c.groups,
            .top_groups = c.top_groups,
            .one_best = c.one_best};
    route(backend, args, scores.view(), indices(ids), weights.view());
  }
  Routed(Backend& backend, const Case& c)
      : Routed(backend, c,
               random_buffer(DType::kF32, {c.tokens, c.experts}, {.seed = 1, .scale = 2})) {}
};

TEST(Router, ChoosesAsTheReferenceDoes) {
  for (const CpuPath path : supported_paths()) {
    CpuBackend backend(path, 2);
    for (const Case& c : kCases) {
      const Routed got(backend, c);
      for (int64_t t = 0; t < c.tokens; ++t) {
        const auto scores = scores_of(got.args, got.logits, t);
        const auto ids =
            ref::chosen_experts(got.args, scores, c.bias == 0.0 ? nullptr : got.bias.view().f32());
        const auto weights = ref::router_weights(got.args, scores, ids);
        for (int64_t k = 0; k < c.top_k; ++k) {
          EXPECT_EQ(got.ids[static_cast<size_t>(t * c.top_k + k)], ids[static_cast<size_t>(k)]);
          // Logits lie within 16 of each other, whose difference is rounded before exp; then exp, a
          // sum of positive terms, a quotient, a product: below 24 roundings.
          EXPECT_NEAR(got.weights.view().f32()[t * c.top_k + k] / weights[static_cast<size_t>(k)],
                      1.0, 24 * 0x1p-24);
        }
      }
    }
  }
}

// With 0 instead of -inf for dropped groups, their experts would beat negative candidates.
TEST(Router, DroppedGroupsNeverTakePart) {
  CpuBackend backend(choose_cpu_path(), 1);
  const Case c = {1, 4, 2, RouterScores::kSigmoid, true, 1.0, -2.0, 2, 1};
  Buffer logits(DType::kF32, {1, 4});
  for (int64_t i = 0; i < 4; ++i) logits.view().f32()[i] = i < 2 ? 3.0f : -3.0f;
  const Routed got(backend, c, logits);
  EXPECT_EQ(std::set<int32_t>(got.ids.begin(), got.ids.end()), (std::set<int32_t>{0, 1}));
}

// Logits whose sigmoids are all 1 in fp32 decide all the same.
TEST(Router, LogitsChooseWhereTheirSigmoidsTie) {
  CpuBackend backend(choose_cpu_path(), 1);
  const Case c = {.tokens = 1, .experts = 4, .top_k = 2, .scores = RouterScores::kLogit};
  Buffer logits(DType::kF32, {1, 4});
  for (int64_t i = 0; i < 4; ++i) logits.view().f32()[i] = 20.0f + static_cast<float>(i);
  const Routed got(backend, c, logits);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(got.weights.view().f32()[0], 1.0f);
}

// Biases that bf16 could not tell apart decide, and only in the choice.
TEST(Router, BiasesCountInFullPrecisionAndOnlyInTheChoice) {
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer logits(DType::kF32, {1, 3}), bias(DType::kF32, {3}), weights(DType::kF32, {1, 1});
  const float biases[] = {5.0f, 5.0001f, 5.00005f};
  for (int64_t i = 0; i < 3; ++i) {
    logits.view().f32()[i] = 0.0f;
    bias.view().f32()[i] = biases[i];
  }
  std::vector<int32_t> ids(1);
  route(backend, {.scores = RouterScores::kSigmoid, .top_k = 1, .bias = bias.view()}, logits.view(),
        indices(ids), weights.view());
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(weights.view().f32()[0], 0.5f);
}

TEST(Router, ATokensChoiceDependsOnItsLogitsAlone) {
  CpuBackend backend(choose_cpu_path(), 3);
  for (const Case& c : kCases) {
    const Routed whole(backend, c);
    Case one = c;
    one.tokens = 1;
    for (int64_t t = 0; t < c.tokens; ++t) {
      Buffer row(DType::kF32, {1, c.experts});
      std::memcpy(row.view().data, whole.logits.view().row(t),
                  static_cast<size_t>(c.experts) * sizeof(float));
      const Routed alone(backend, one, row);
      EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), whole.ids.begin() + t * c.top_k));
      EXPECT_EQ(std::memcmp(alone.weights.view().data, whole.weights.view().row(t),
                            static_cast<size_t>(c.top_k) * sizeof(float)),
                0);
    }
  }
}

TEST(Router, EqualScoresGoToTheLowerIdAndNanChoosesSomething) {
  CpuBackend backend(choose_cpu_path(), 1);
  for (const float value : {0.25f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Case c = {1, 6, 3};
    Buffer logits(DType::kF32, {1, 6});
    std::fill_n(logits.view().f32(), 6, value);
    EXPECT_EQ(Routed(backend, c, logits).ids, (std::vector<int32_t>{0, 1, 2})) << value;
  }
}

// Where experts are given, only weights are made: those of the same experts, chosen or not.
TEST(Router, GivenExpertsGetTheirWeights) {
  CpuBackend backend(choose_cpu_path(), 2);
  for (const Case& c : kCases) {
    const Routed got(backend, c);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t k = 0; k < c.top_k; ++k) {
        ids.push_back(static_cast<int32_t>((7 * t + k) % c.experts));
      }
    }
    Buffer scores(got.logits), weights(DType::kF32, {c.tokens, c.top_k});
    route_to_given_experts(backend, got.args, scores, indices(ids), weights);
    expect_same_bits(scores, got.scores);
    for (int64_t t = 0; t < c.tokens; ++t) {
      const std::vector<int32_t> of(ids.begin() + t * c.top_k, ids.begin() + (t + 1) * c.top_k);
      const auto want = ref::router_weights(got.args, scores_of(got.args, got.logits, t), of);
      for (int64_t k = 0; k < c.top_k; ++k) {
        EXPECT_NEAR(weights.get(t * c.top_k + k) / want[static_cast<size_t>(k)], 1, 24 * 0x1p-24);
      }
    }
  }
}

// Far below zero the score is exp(l / 2) and its slope half of that; nothing is lost on the way.
TEST(Router, SqrtSoftplusKeepsSmallScores) {
  CpuBackend backend(choose_cpu_path(), 1);
  for (const float logit : {-60.0f, -20.0f, 30.0f}) {
    Buffer scores = filled_buffer(DType::kF32, {1, 1}, logit), weights(DType::kF32, {1, 1});
    std::vector<int32_t> ids(1);
    const RouterArgs args = {.scores = RouterScores::kSqrtSoftplus, .top_k = 1, .bias = {}};
    route(backend, args, scores, indices(ids), weights);
    Buffer d_logits(DType::kF32, {1, 1});
    route_backward(backend, args, scores, indices(ids), filled_buffer(DType::kF32, {1, 1}, 1),
                   d_logits);
    const double l = logit, s = std::sqrt(std::log1p(std::exp(l)));
    EXPECT_NEAR(weights.get(0) / s, 1, 0x1p-23);
    EXPECT_NEAR(d_logits.get(0) / (1 / (1 + std::exp(-l)) / (2 * s)), 1, 0x1p-22);
  }
}

TEST(Router, BackwardMatchesTheComplexStep) {
  CpuBackend backend(choose_cpu_path(), 2);
  for (const Case& c : kCases) {
    const Routed got(backend, c);
    const Buffer d_weights = random_buffer(DType::kF32, {c.tokens, c.top_k}, {.seed = 3});
    Buffer d_logits(DType::kF32, {c.tokens, c.experts});
    route_backward(backend, got.args, got.scores, indices(got.ids), d_weights, d_logits);
    for (int64_t t = 0; t < c.tokens; ++t) {
      const std::vector<int32_t> ids(got.ids.begin() + t * c.top_k,
                                     got.ids.begin() + (t + 1) * c.top_k);
      std::vector<double> row, d;
      for (int64_t i = 0; i < c.experts; ++i) row.push_back(got.logits.get(t * c.experts + i));
      for (int64_t k = 0; k < c.top_k; ++k) d.push_back(d_weights.get(t * c.top_k + k));
      const auto want = complex_step(
          [&](const std::vector<std::complex<double>>& x) {
            return ref::router_weights(got.args, ref::router_scores(c.scores, x), ids);
          },
          row, d);
      // Scores are read in fp32; then one rounding. Slopes are below 1 and sums of scores, by which
      // a norm divides, of their size.
      double magnitude = 0;
      for (const double value : d) magnitude += c.scale * std::abs(value);
      for (int64_t i = 0; i < c.experts; ++i) {
        EXPECT_NEAR(d_logits.get(t * c.experts + i), want[static_cast<size_t>(i)],
                    16 * 0x1p-24 * magnitude)
            << "expert " << i;
      }
    }
  }
}

Buffer numbers(std::span<const int32_t> values) {
  Buffer out(DType::kF32, {std::ssize(values)});
  for (size_t i = 0; i < values.size(); ++i) out.set(static_cast<int64_t>(i), values[i]);
  return out;
}

TEST(Router, EveryPathAndTeamGivesTheSameBits) {
  for (const Case& c : kCases) {
    const Buffer d_weights = random_buffer(DType::kF32, {c.tokens, c.top_k}, {.seed = 3});
    run_everywhere([&](Backend& backend) {
      Routed got(backend, c);
      std::vector<Buffer> out = {got.scores, got.weights, numbers(got.ids)};
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        out.emplace_back(dtype, Shape{c.tokens, c.experts});
        route_backward(backend, got.args, got.scores, indices(got.ids), d_weights, out.back());
      }
      Buffer given(got.logits), weights(DType::kF32, {c.tokens, c.top_k});
      route_to_given_experts(backend, got.args, given, indices(got.ids), weights);
      expect_same_bits(weights, got.weights);
      return out;
    });
  }
}

// By expert, then by token; an expert without tokens has no rows.
TEST(Router, RowsAreSortedByExpertAndThenByToken) {
  constexpr int64_t kTokens = 200, kExperts = 9, kTopK = 3;
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < kTokens; ++t) {
    for (int32_t k = 0; k < kTopK; ++k) ids.push_back((t * t + 3 * k) % 8);  // never 8
  }
  std::vector<size_t> slots(ids.size());
  std::iota(slots.begin(), slots.end(), 0);
  std::stable_sort(slots.begin(), slots.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });
  const Buffer weights = random_buffer(DType::kF32, {kTokens * kTopK}, {.seed = 1});
  run_everywhere([&](Backend& backend) {
    std::vector<int32_t> token_of_row(ids.size(), -1), row_of_slot(ids.size(), -1);
    std::vector<int64_t> ends(kExperts, -1);
    std::vector<Buffer> out = {Buffer(DType::kF32, {kTokens * kTopK})};
    sort_routes(backend, kTopK, indices(ids), weights,
                {indices(token_of_row), indices(row_of_slot), out[0], indices(ends)});
    for (size_t row = 0; row < slots.size(); ++row) {
      const size_t slot = slots[row];
      EXPECT_EQ(token_of_row[row], static_cast<int32_t>(slot / kTopK));
      EXPECT_EQ(row_of_slot[slot], static_cast<int32_t>(row));
      EXPECT_EQ(out[0].get(static_cast<int64_t>(row)), weights.get(static_cast<int64_t>(slot)));
    }
    for (int32_t e = 0; e < kExperts; ++e) {
      EXPECT_EQ(ends[static_cast<size_t>(e)],
                std::count_if(ids.begin(), ids.end(), [e](int32_t id) { return id <= e; }));
    }
    return out;
  });
}

TEST(Router, ATableGivesEachTokenItsExperts) {
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer table(DType::kF32, {5, 2});
  for (int64_t i = 0; i < 10; ++i) table.set(i, static_cast<double>(i * 3));
  std::vector<int32_t> ids(6);
  look_up_experts(backend, table, std::vector<int32_t>{4, 0, 4}, indices(ids));
  EXPECT_EQ(ids, (std::vector<int32_t>{24, 27, 0, 3, 24, 27}));
}

// By whole numbers against the mean of 4: 6 and 5 go down, 1 goes up, 4 stays.
TEST(Router, ABiasFollowsTheLoadsOfItsExperts) {
  CpuBackend backend(choose_cpu_path(), 1);
  Buffer bias(DType::kF32, {4});
  const std::vector<float> before = {0.5f, -0.25f, 1e-3f, 0.0f};
  for (int64_t e = 0; e < 4; ++e) bias.set(e, before[static_cast<size_t>(e)]);
  balance_bias(backend, std::vector<int64_t>{6, 1, 4, 5}, 1e-3, bias);
  EXPECT_EQ(bias.view().f32()[0], 0.5f - 1e-3f);
  EXPECT_EQ(bias.view().f32()[1], -0.25f + 1e-3f);
  EXPECT_EQ(bias.view().f32()[2], 1e-3f);
  EXPECT_EQ(bias.view().f32()[3], -1e-3f);
}

}  // namespace
}  // namespace strata::ops
