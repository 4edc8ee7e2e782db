// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "ops/log_softmax.h"
#include "ops/ref/choose_tokens.h"

namespace strata::ops::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t vocab, uint64_t seed, double scale) {
  const Counter counter{.seed = seed, .stream = 1};
  std::vector<float> logits(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    logits[i] = static_cast<float>(scale * counter.normal(static_cast<uint64_t>(i)));
  }
  return logits;
}

std::map<int32_t, double> oracle(const std::vector<float>& logits, const SamplingParams& params,
                                 double* margin = nullptr) {
  return ref::choice_probabilities(logits, params, margin);
}

// Draws `count` tokens and compares their frequencies with the oracle's probabilities by Pearson's
// chi-square, in cells of at least 8 expected draws. The bound, 5 standard deviations above the
// mean (Wilson and Hilferty), is passed by chance less than once in a million runs; seeds are
// fixed.
void expect_distribution(const std::vector<float>& logits, SamplingParams params, int count) {
  const auto want = oracle(logits, params);
  std::map<int32_t, int> seen;
  for (int i = 0; i < count; ++i) {
    const int32_t token = choose_token(logits, params, static_cast<uint64_t>(i));
    ASSERT_TRUE(want.contains(token)) << "token " << token << " was filtered out";
    ++seen[token];
  }
  double chi2 = 0;
  int cells = 0;
  double rest_want = 0;
  double rest_seen = 0;
  const auto add_cell = [&](double expected, double observed) {
    chi2 += (observed - expected) * (observed - expected) / expected;
    ++cells;
  };
  for (const auto& [id, probability] : want) {
    const double expected = probability * count;
    const double observed = seen.contains(id) ? seen[id] : 0;
    if (expected >= 8) {
      add_cell(expected, observed);
    } else {
      rest_want += expected;
      rest_seen += observed;
    }
  }
  if (rest_want >= 8) add_cell(rest_want, rest_seen);
  const double freedom = cells - 1;
  if (freedom < 1) return;
  const double spread = 2.0 / (9.0 * freedom);
  const double bound = freedom * std::pow(1 - spread + 5 * std::sqrt(spread), 3);
  EXPECT_LE(chi2, bound) << "cells " << cells;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargestLogit) {
  const SamplingParams greedy = {.temperature = 0};
  EXPECT_EQ(choose_token(std::vector<float>{1}, greedy, 0), 0);
  EXPECT_EQ(choose_token(std::vector<float>{1, 3, 3, 2}, greedy, 5), 1);
  EXPECT_EQ(choose_token(std::vector<float>{-2, -1, -1}, greedy, 0), 1);
  EXPECT_EQ(choose_token(std::vector<float>{-1, -0.0f, 0.0f}, greedy, 0), 1);
  for (const size_t vocab : {7u, 63u, 64u, 65u, 1000u, 151936u}) {
    auto logits = random_logits(vocab, vocab, 3);
    const auto want = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(choose_token(logits, greedy, 0), want);
    // Greedy ignores the filters and the seed.
    EXPECT_EQ(choose_token(logits, {.temperature = 0, .top_k = 2, .top_p = 0.1f, .seed = 9}, 3),
              want);
    logits.back() = logits[static_cast<size_t>(want)];
    EXPECT_EQ(choose_token(logits, greedy, 0), want);
  }
}

TEST(Sampler, FollowsTheDistribution) {
  const auto logits = random_logits(50, 1, 2);
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    for (const int64_t top_k : {0, 1, 7, 50, 60}) {
      for (const float top_p : {0.05f, 0.5f, 0.9f, 1.0f}) {
        SCOPED_TRACE("temperature " + std::to_string(temperature) + ", top_k " +
                     std::to_string(top_k) + ", top_p " + std::to_string(top_p));
        expect_distribution(
            logits, {.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = 3}, 4000);
      }
    }
    for (const float min_p : {0.01f, 0.2f, 1.0f}) {
      SCOPED_TRACE("temperature " + std::to_string(temperature) + ", min_p " +
                   std::to_string(min_p));
      expect_distribution(logits, {.temperature = temperature, .min_p = min_p, .seed = 4}, 4000);
    }
  }
}

// Many groups and a ragged end; a flat and a peaked row.
TEST(Sampler, FollowsTheDistributionOverLargeVocabularies) {
  for (const double scale : {0.0, 1.0, 4.0}) {
    const auto logits = random_logits(20011, 2, scale);
    expect_distribution(logits, {.seed = 4}, 3000);
    expect_distribution(logits, {.top_p = 0.8f, .seed = 5}, 300);
    expect_distribution(logits, {.top_k = 100, .top_p = 0.8f, .seed = 6}, 1000);
  }
  auto flat = std::vector<float>(1000, 0.5f);
  expect_distribution(flat, {.seed = 7}, 100000);
  flat[999] = 6;
  expect_distribution(flat, {.seed = 8}, 20000);
}

// Random small rows, ties included: what is drawn is what the oracle keeps, and everything likely
// that it keeps is drawn.
TEST(Sampler, KeepsExactlyWhatTheOracleKeeps) {
  const Counter counter{.seed = 11, .stream = 0};
  int filtered = 0;
  for (uint64_t trial = 0; trial < 1500; ++trial) {
    const auto words = counter.words(trial);
    const size_t vocab = 1 + words[0] % 12;
    std::vector<float> logits;
    for (size_t i = 0; i < vocab; ++i) {  // few different values: many ties
      logits.push_back(static_cast<float>(counter.words(1000000 + trial * 16 + i)[0] % 4) * 0.75f);
    }
    const SamplingParams params = {.temperature = 0.5f + static_cast<float>(words[1] % 3),
                                   .top_k = static_cast<int64_t>(words[2] % 14),
                                   .top_p = static_cast<float>(1 + words[3] % 10) / 10.0f,
                                   .min_p = static_cast<float>(trial % 3) * 0.3f,
                                   .seed = trial};
    double margin = 0;
    const auto want = oracle(logits, params, &margin);
    if (margin < 1e-6) continue;  // fp32 weights may decide the other way
    filtered += want.size() < vocab ? 1 : 0;
    std::set<int32_t> seen;
    for (uint64_t step = 0; step < 300; ++step) seen.insert(choose_token(logits, params, step));
    for (const int32_t token : seen) {
      ASSERT_TRUE(want.contains(token)) << "trial " << trial << ", token " << token;
    }
    for (const auto& [id, probability] : want) {  // missing it: (1 - 0.08)^300 = 1e-11
      if (probability > 0.08) {
        ASSERT_TRUE(seen.contains(id)) << "trial " << trial << ", token " << id;
      }
    }
  }
  EXPECT_GT(filtered, 500);
}

TEST(Sampler, ExactThresholds) {
  const std::vector<float> equal(4, 1.25f);
  const auto drawn = [&](const std::vector<float>& logits, SamplingParams params) {
    std::set<int32_t> seen;
    for (uint64_t step = 0; step < 500; ++step) seen.insert(choose_token(logits, params, step));
    return seen;
  };
  using testing::ElementsAre;
  // Before the third token the cumulative probability is exactly 0.5, which is not < 0.5.
  EXPECT_THAT(drawn(equal, {.top_p = 0.5f}), ElementsAre(0, 1));
  EXPECT_THAT(drawn(equal, {.top_p = 0.50001f}), ElementsAre(0, 1, 2));
  EXPECT_THAT(drawn(equal, {.top_p = 1e-9f}), ElementsAre(0));
  EXPECT_THAT(drawn(equal, {.top_k = 3}), ElementsAre(0, 1, 2));
  EXPECT_THAT(drawn(equal, {.top_k = 2, .top_p = 0.5f}), ElementsAre(0));
  EXPECT_THAT(drawn(equal, {.top_k = -1}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.top_k = 2}), ElementsAre(1, 3));
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.top_k = 4}), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.min_p = 1.0f}), ElementsAre(1, 3, 5));
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.min_p = 0.36f}), ElementsAre(1, 2, 3, 4, 5));  // e^-1
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.min_p = 0.37f}), ElementsAre(1, 3, 5));
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.temperature = 2, .min_p = 0.37f}),
              ElementsAre(1, 2, 3, 4, 5));  // e^-0.5, e^-1
  EXPECT_THAT(drawn({0, 2, 1, 2, 1, 2}, {.top_k = 2, .min_p = 0.36f}), ElementsAre(1, 3));
}

TEST(Sampler, DependsOnSeedAndStepAlone) {
  const auto logits = random_logits(3000, 5, 1);
  const SamplingParams params = {.temperature = 1, .seed = 77};
  std::vector<int32_t> first;
  for (uint64_t step = 0; step < 50; ++step) first.push_back(choose_token(logits, params, step));
  for (uint64_t step = 50; step-- > 0;) {
    EXPECT_EQ(choose_token(logits, params, step), first[step]);
  }
  SamplingParams other = params;
  other.seed = 78;
  int equal = 0;
  for (uint64_t step = 0; step < 50; ++step) {
    equal += choose_token(logits, other, step) == first[step] ? 1 : 0;
  }
  EXPECT_LT(equal, 10);
  // A filter that removes nothing changes nothing.
  SamplingParams wide = params;
  wide.top_k = 3000;
  wide.min_p = 0.0f;
  for (uint64_t step = 0; step < 50; ++step) {
    EXPECT_EQ(choose_token(logits, wide, step), first[step]);
  }
}

TEST(Sampler, ExtremeTemperaturesAndLogits) {
  const std::vector<float> logits = {1, 3e38f, -3e38f, 2.9e38f};
  for (uint64_t step = 0; step < 100; ++step) {
    EXPECT_EQ(choose_token(logits, {.seed = 1}, step), 1);
    EXPECT_EQ(choose_token(logits, {.top_k = 3, .top_p = 0.9999f, .seed = 1}, step), 1);
    EXPECT_EQ(choose_token(std::vector<float>{1, 1.5f, 1.25f},
                           {.temperature = 1e-42f, .top_p = 0.9f, .seed = 1}, step),
              1);
  }
  // At a huge temperature everything is equally likely.
  expect_distribution(random_logits(40, 3, 3), {.temperature = 1e30f, .seed = 2}, 4000);
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    for (const size_t at : {0u, 63u, 64u, 129u}) {
      std::vector<float> logits(130, 1.0f);
      logits[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        try {
          choose_token(logits, {.temperature = temperature, .top_p = 0.5f}, 0);
          FAIL() << "accepted " << bad;
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), testing::HasSubstr("token " + std::to_string(at) + " is"));
        }
      }
      std::vector<int32_t> ids(2);
      std::vector<float> logprobs(2);
      const float lse[2] = {0, 0};
      EXPECT_THROW(write_topk_of_row(logits, lse, ids, logprobs), Error);
    }
  }
}

TEST(Sampler, TopKLogprobsAreSortedWithTiesByLowerId) {
  const Counter counter{.seed = 12, .stream = 0};
  for (const size_t vocab : {1u, 5u, 100u, 3000u}) {
    std::vector<float> logits;
    for (size_t i = 0; i < vocab; ++i) {
      logits.push_back(static_cast<float>(counter.words(i)[0] % 40) * 0.25f);
    }
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
    });
    const float lse[2] = {9.75f, 3.5f};
    for (const size_t k : {size_t{0}, size_t{1}, std::min<size_t>(20, vocab), vocab}) {
      std::vector<int32_t> ids(k);
      std::vector<float> logprobs(k);
      write_topk_of_row(logits, lse, ids, logprobs);
      for (size_t i = 0; i < k; ++i) {
        EXPECT_EQ(ids[i], order[i]);
        EXPECT_EQ(logprobs[i], ops::logprob(logit(order[i]), lse));
      }
    }
  }
}

// Draws with replacement follow softmax(logits / temperature): counts against probabilities within
// five standard deviations, and another stream than choose_token's.
TEST(Sampler, DrawTokensFollowsTheDistribution) {
  const std::vector<float> logits = random_logits(40, 3, 1.5);
  constexpr size_t kDraws = 40000;
  std::vector<int32_t> ids(kDraws);
  draw_from_row(logits, 0.8f, 7, 0, ids);
  std::vector<double> counts(logits.size());
  for (const int32_t id : ids) counts[static_cast<size_t>(id)] += 1.0;
  double total = 0.0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) / 0.8);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(static_cast<double>(logits[i]) / 0.8) / total;
    EXPECT_NEAR(counts[i], kDraws * p, 5.0 * std::sqrt(kDraws * p * (1.0 - p)) + 1.0) << i;
  }
  std::vector<int32_t> tail(kDraws - 100);
  draw_from_row(logits, 0.8f, 7, 100, tail);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), ids.begin() + 100));
  size_t equal = 0;
  for (size_t i = 0; i < 1000; ++i)
    equal += ids[i] == choose_token(logits, {.temperature = 0.8f, .seed = 7}, i) ? 1 : 0;
  EXPECT_LT(equal, 500u);
  std::vector<int32_t> greedy(5);
  draw_from_row(logits, 0.0f, 7, 0, greedy);
  for (const int32_t id : greedy) EXPECT_EQ(id, choose_token(logits, {.temperature = 0.0f}, 0));
}

}  // namespace
}  // namespace strata::ops::cpu
