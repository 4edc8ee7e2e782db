// The choice of experts against a plain double reference: groups, biases, norms, ties; and its
// gradient against differences.
#include "ops/router.h"

#include <algorithm>
#include <numeric>
#include <set>

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
    {30, 16, 4, RouterScores::kSqrtSoftplus, true, 1.5, -0.6},
    {9, 5, 2, RouterScores::kSqrtSoftplus, false, 2.5},
};

std::vector<double> scores_of(const Case& c, const float* logits) {
  std::vector<double> s(static_cast<size_t>(c.experts));
  double sum = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    const double x = logits[i];
    s[i] = c.scores == RouterScores::kSigmoid        ? 1 / (1 + std::exp(-x))
           : c.scores == RouterScores::kSqrtSoftplus ? std::sqrt(std::log1p(std::exp(x)))
                                                     : std::exp(x);
    sum += s[i];
  }
  if (c.scores == RouterScores::kSoftmax) {
    for (double& value : s) value /= sum;
  }
  return s;
}

// HF's DeepseekV3TopkRouter and Qwen3MoeTopKRouter, spelled out.
std::vector<int32_t> chosen_by(const Case& c, const std::vector<double>& scores,
                               const float* bias) {
  std::vector<double> choice = scores;
  for (size_t i = 0; i < choice.size() && bias != nullptr; ++i) choice[i] += double{bias[i]};
  const size_t size = choice.size() / static_cast<size_t>(c.groups);
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < static_cast<size_t>(c.groups); ++g) {
    std::vector<double> of(choice.begin() + static_cast<int64_t>(g * size),
                           choice.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(of.rbegin(), of.rend());
    groups.emplace_back(-(of[0] + (size > 1 ? of[1] : 0.0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<int32_t> order;
  for (size_t g = 0; g < static_cast<size_t>(c.top_groups); ++g) {
    for (size_t i = 0; i < size; ++i)
      order.push_back(static_cast<int32_t>(groups[g].second * size + i));
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const double x = choice[static_cast<size_t>(a)], y = choice[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.resize(static_cast<size_t>(c.top_k));
  return order;
}

std::vector<double> weights_of(const Case& c, const std::vector<double>& scores,
                               const std::vector<int32_t>& ids) {
  std::vector<double> w;
  for (const int32_t id : ids) w.push_back(scores[static_cast<size_t>(id)]);
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& value : w) value *= c.scale / (c.norm ? sum : 1.0);
  return w;
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
            .top_groups = c.top_groups};
    route(backend, args, scores.view(), ids, weights.view());
  }
  Routed(Backend& backend, const Case& c)
      : Routed(backend, c,
               random_buffer(DType::kF32, {c.tokens, c.experts}, {.seed = 1, .scale = 2})) {}
};

TEST(Router, ChoosesAsTheReferenceDoes) {
  for (const CpuPath path : supported_paths()) {
    Backend backend(path, 2);
    for (const Case& c : kCases) {
      const Routed got(backend, c);
      for (int64_t t = 0; t < c.tokens; ++t) {
        const auto scores = scores_of(c, got.logits.view().f32() + t * c.experts);
        const auto ids = chosen_by(c, scores, c.bias == 0.0 ? nullptr : got.bias.view().f32());
        const auto weights = weights_of(c, scores, ids);
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
  Backend backend(choose_cpu_path(), 1);
  const Case c = {1, 4, 2, RouterScores::kSigmoid, true, 1.0, -2.0, 2, 1};
  Buffer logits(DType::kF32, {1, 4});
  for (int64_t i = 0; i < 4; ++i) logits.view().f32()[i] = i < 2 ? 3.0f : -3.0f;
  const Routed got(backend, c, logits);
  EXPECT_EQ(std::set<int32_t>(got.ids.begin(), got.ids.end()), (std::set<int32_t>{0, 1}));
}

// Biases that bf16 could not tell apart decide, and only in the choice.
TEST(Router, BiasesCountInFullPrecisionAndOnlyInTheChoice) {
  Backend backend(choose_cpu_path(), 1);
  Buffer logits(DType::kF32, {1, 3}), bias(DType::kF32, {3}), weights(DType::kF32, {1, 1});
  const float biases[] = {5.0f, 5.0001f, 5.00005f};
  for (int64_t i = 0; i < 3; ++i) {
    logits.view().f32()[i] = 0.0f;
    bias.view().f32()[i] = biases[i];
  }
  std::vector<int32_t> ids(1);
  route(backend, {.scores = RouterScores::kSigmoid, .top_k = 1, .bias = bias.view()}, logits.view(),
        ids, weights.view());
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(weights.view().f32()[0], 0.5f);
}

TEST(Router, ATokensChoiceDependsOnItsLogitsAlone) {
  Backend backend(choose_cpu_path(), 3);
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
  Backend backend(choose_cpu_path(), 1);
  for (const float value : {0.25f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Case c = {1, 6, 3};
    Buffer logits(DType::kF32, {1, 6});
    std::fill_n(logits.view().f32(), 6, value);
    EXPECT_EQ(Routed(backend, c, logits).ids, (std::vector<int32_t>{0, 1, 2})) << value;
  }
}

// Where experts are given, only weights are made: those of the same experts, chosen or not.
TEST(Router, GivenExpertsGetTheirWeights) {
  Backend backend(choose_cpu_path(), 2);
  for (const Case& c : kCases) {
    const Routed got(backend, c);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t k = 0; k < c.top_k; ++k) {
        ids.push_back(static_cast<int32_t>((7 * t + k) % c.experts));
      }
    }
    Buffer scores(got.logits), weights(DType::kF32, {c.tokens, c.top_k});
    route_chosen(backend, got.args, scores, ids, weights);
    expect_same_bits(scores, got.scores);
    for (int64_t t = 0; t < c.tokens; ++t) {
      const std::vector<int32_t> of(ids.begin() + t * c.top_k, ids.begin() + (t + 1) * c.top_k);
      const auto want = weights_of(c, scores_of(c, got.logits.view().f32() + t * c.experts), of);
      for (int64_t k = 0; k < c.top_k; ++k) {
        EXPECT_NEAR(weights.get(t * c.top_k + k) / want[static_cast<size_t>(k)], 1, 24 * 0x1p-24);
      }
    }
  }
}

// Far below zero the score is exp(l / 2) and its slope half of that; nothing is lost on the way.
TEST(Router, SqrtSoftplusKeepsSmallScores) {
  Backend backend(choose_cpu_path(), 1);
  for (const float logit : {-60.0f, -20.0f, 30.0f}) {
    Buffer scores = filled_buffer(DType::kF32, {1, 1}, logit), weights(DType::kF32, {1, 1});
    std::vector<int32_t> ids(1);
    const RouterArgs args = {.scores = RouterScores::kSqrtSoftplus, .top_k = 1, .bias = {}};
    route(backend, args, scores, ids, weights);
    Buffer d_logits(DType::kF32, {1, 1});
    route_backward(backend, args, scores, ids, filled_buffer(DType::kF32, {1, 1}, 1), d_logits);
    const double l = logit, s = std::sqrt(std::log1p(std::exp(l)));
    EXPECT_NEAR(weights.get(0) / s, 1, 0x1p-23);
    EXPECT_NEAR(d_logits.get(0) / (1 / (1 + std::exp(-l)) / (2 * s)), 1, 0x1p-22);
  }
}

TEST(Router, BackwardMatchesDifferences) {
  Backend backend(choose_cpu_path(), 2);
  for (const Case& c : kCases) {
    const Routed got(backend, c);
    const Buffer d_weights = random_buffer(DType::kF32, {c.tokens, c.top_k}, {.seed = 3});
    Buffer d_logits(DType::kF32, {c.tokens, c.experts});
    route_backward(backend, got.args, got.scores.view(), got.ids, d_weights.view(),
                   d_logits.view());
    for (int64_t t = 0; t < std::min<int64_t>(c.tokens, 4); ++t) {
      const std::vector<int32_t> ids(got.ids.begin() + t * c.top_k,
                                     got.ids.begin() + (t + 1) * c.top_k);
      const auto sum = [&](const std::vector<float>& logits) {
        const auto w = weights_of(c, scores_of(c, logits.data()), ids);
        double total = 0;
        for (size_t k = 0; k < w.size(); ++k)
          total += w[k] * double{d_weights.view().f32()[t * c.top_k + static_cast<int64_t>(k)]};
        return total;
      };
      const float* row = got.logits.view().f32() + t * c.experts;
      for (int64_t i = 0; i < c.experts; ++i) {
        std::vector<float> up(row, row + c.experts), down = up;
        up[static_cast<size_t>(i)] += 0x1p-7f;
        down[static_cast<size_t>(i)] -= 0x1p-7f;
        const double step =
            double{up[static_cast<size_t>(i)]} - double{down[static_cast<size_t>(i)]};
        // The third derivative is below 2 |d|, the step 2^-7.
        EXPECT_NEAR(d_logits.view().f32()[t * c.experts + i], (sum(up) - sum(down)) / step,
                    1e-4 * c.scale)
            << "expert " << i;
      }
    }
  }
}

}  // namespace
}  // namespace strata::ops
