// SPDX-License-Identifier: Apache-2.0
// Masks of a choice: what is drawn has the reference's distribution over the allowed tokens, what
// is said of it is that of the row without a mask.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "ops/choose_tokens.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/log_softmax.h"
#include "ops/ref/choose_tokens.h"

namespace strata::ops {
namespace {

using Mask = std::vector<uint32_t>;

Mask mask_of(size_t vocab, const std::vector<int32_t>& ids) {
  Mask mask((vocab + 31) / 32, 0u);
  for (const int32_t id : ids) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  return mask;
}

// About one token in `of` ids; at least the last.
Mask random_mask(size_t vocab, uint64_t seed, double of) {
  const Counter counter{.seed = seed, .stream = 3};
  std::vector<int32_t> ids = {static_cast<int32_t>(vocab) - 1};
  for (size_t i = 0; i + 1 < vocab; ++i)
    if (counter.uniform(i) * of < 1) ids.push_back(static_cast<int32_t>(i));
  return mask_of(vocab, ids);
}

std::vector<float> random_logits(size_t vocab, uint64_t seed) {
  const Counter counter{.seed = seed, .stream = 1};
  std::vector<float> logits(vocab);
  for (size_t i = 0; i < vocab; ++i) logits[i] = static_cast<float>(1.5 * counter.normal(i));
  return logits;
}

// Rows of equal length in a backend's memory, with their sums.
class Rows {
 public:
  explicit Rows(const std::vector<std::vector<float>>& rows)
      : mark_(backend_.scratch()),
        logits_(backend_.scratch().take(DType::kF32, {std::ssize(rows), std::ssize(rows.front())})),
        lse_(backend_.scratch().take(DType::kF32, {std::ssize(rows), 2})) {
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy(rows[i].begin(), rows[i].end(), logits_.f32() + i * rows[i].size());
    logsumexp(backend_, logits_, lse_);
  }
  void choose(std::span<TokenChoice> choices) {
    std::vector<TokenChoice*> all;
    for (TokenChoice& choice : choices) all.push_back(&choice);
    choose_tokens(backend_, logits_, lse_, all);
  }

 private:
  CpuBackend backend_{choose_cpu_path(), 1};
  Scratch::Mark mark_;
  TensorView logits_, lse_;
};

std::vector<SamplingParams> all_params() {
  return {{.temperature = 0},
          {.temperature = 1},
          {.temperature = 0.4f},
          {.temperature = 1, .top_k = 5},
          {.temperature = 1, .top_p = 0.7f},
          {.temperature = 1, .min_p = 0.1f},
          {.temperature = 2, .top_k = 12, .top_p = 0.9f, .min_p = 0.02f}};
}

// Frequencies of `count` draws lie within 5 standard deviations of the reference's probabilities,
// which chance passes once in a million cells; seeds are fixed.
void expect_reference(const std::vector<float>& logits, const TokenChoice& asked, int count) {
  Rows rows({logits});
  const std::vector<double> changed = ref::changed_logits(logits, asked);
  const auto want = ref::choice_probabilities(changed, asked.params, nullptr, asked.allowed);
  std::map<int32_t, int> seen;
  std::vector<TokenChoice> choices(static_cast<size_t>(count), asked);
  for (size_t i = 0; i < choices.size(); ++i) choices[i].step_index = i;
  rows.choose(choices);
  for (const TokenChoice& choice : choices) {
    ASSERT_EQ(choice.error, "");
    ASSERT_TRUE(want.contains(choice.token)) << choice.token;
    ++seen[choice.token];
  }
  const auto expect_near = [&](double got, double p) {
    EXPECT_NEAR(got, count * p, 5 * std::sqrt(count * p * (1 - p)) + 1e-9);
  };
  double rare = 0, rare_seen = 0;  // together: alone they are too few for a normal distribution
  for (const auto& [id, p] : want) {
    if (count * p >= 10) {
      expect_near(seen[id], p);
    } else {
      rare += p;
      rare_seen += seen[id];
    }
  }
  if (count * rare >= 10) expect_near(rare_seen, rare);
}

TEST(AllowedTokens, AreDrawnAsTheReferenceDrawsThem) {
  for (const size_t vocab : {1u, 31u, 32u, 33u, 100u, 1000u}) {
    for (const double of : {1.0, 2.0, 20.0}) {
      const Mask mask = random_mask(vocab, vocab, of);
      for (const SamplingParams& params : all_params()) {
        SCOPED_TRACE(testing::Message() << vocab << ' ' << of << ' ' << params.temperature);
        expect_reference(random_logits(vocab, 7), {.params = params, .allowed = mask}, 2000);
      }
    }
  }
}

// A token that is not allowed stays out whatever its logit becomes; changes and penalties come
// first.
TEST(AllowedTokens, AreReadBehindChangesAndPenalties) {
  const std::vector<float> logits = random_logits(50, 3);
  const Mask mask = mask_of(50, {2, 7, 8, 30, 49});
  const std::vector<LogitChange> changes = {{3, 90.0f}, {7, 2.0f}, {8, -100.0f}};
  const std::vector<int32_t> prompt = {30, 4};
  const std::vector<TokenCount> answer = {{49, 2}};
  for (SamplingParams params : all_params()) {
    expect_reference(logits,
                     {.params = params,
                      .changes = changes,
                      .penalties = {.repetition = 1.3f, .frequency = 0.4f, .presence = -0.5f},
                      .before = {.prompt = prompt, .answer = answer},
                      .allowed = mask},
                     2000);
  }
}

TEST(AllowedTokens, OfAMaskOfAllHaveTheBitsOfNone) {
  for (const size_t vocab : {31u, 64u, 5000u}) {
    Rows rows({random_logits(vocab, 5)});
    const Mask all = random_mask(vocab, 0, 1.0);
    for (const SamplingParams& params : all_params()) {
      std::vector<TokenChoice> plain(200, {.params = params});
      for (size_t i = 0; i < plain.size(); ++i) plain[i].step_index = i;
      std::vector<TokenChoice> masked = plain;
      for (TokenChoice& choice : masked) choice.allowed = all;
      rows.choose(plain);
      rows.choose(masked);
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].token, masked[i].token) << i;
    }
  }
}

TEST(AllowedTokens, KeepTheLogprobsOfTheRow) {
  const std::vector<float> logits = random_logits(200, 9);
  const Mask mask = mask_of(200, {150});
  for (const bool scaled : {false, true}) {
    Rows rows({logits});
    TokenChoice asked = {.params = {.temperature = 0.5f}, .scaled_logprobs = scaled};
    asked.topk_ids.resize(4);
    asked.topk_logprobs.resize(4);
    std::vector<TokenChoice> choices(2, asked);
    const std::vector<LogitChange> ban_others = [] {
      std::vector<LogitChange> out;
      for (int32_t id = 0; id < 200; ++id)
        if (id != 150) out.push_back({id, -1000.0f});
      return out;
    }();
    choices[0].changes = ban_others;  // the same token, without a mask
    choices[1].allowed = mask;
    rows.choose(choices);
    for (const TokenChoice& choice : choices) EXPECT_EQ(choice.token, 150);
    EXPECT_EQ(choices[0].logprob, choices[1].logprob);
    EXPECT_EQ(choices[0].topk_ids, choices[1].topk_ids);
    EXPECT_EQ(choices[0].topk_logprobs, choices[1].topk_logprobs);
    EXPECT_LT(choices[1].logprob, -1.0f);
  }
}

TEST(AllowedTokens, NoneIsAFaultOfItsRowAlone) {
  const std::vector<float> logits = random_logits(70, 2);
  Rows rows({logits, logits});
  const Mask none = mask_of(70, {});
  std::vector<TokenChoice> choices(2);
  choices[0].allowed = none;
  choices[1].row = 1;
  rows.choose(choices);
  EXPECT_THAT(choices[0].error, testing::HasSubstr("no token of the vocabulary may come next"));
  EXPECT_EQ(choices[1].error, "");
}

TEST(AllowedTokens, ALogitThatIsNoNumberIsAFaultOutsideToo) {
  std::vector<float> logits = random_logits(70, 2);
  logits[40] = std::numeric_limits<float>::quiet_NaN();
  Rows rows({logits});
  const Mask mask = mask_of(70, {1, 2});
  std::vector<TokenChoice> choices(1);
  choices[0].allowed = mask;
  rows.choose(choices);
  EXPECT_THAT(choices[0].error, testing::HasSubstr("the logit of token 40 is nan"));
}

}  // namespace
}  // namespace strata::ops
