// SPDX-License-Identifier: Apache-2.0
// What rows of logits give does not depend on the rows beside them, and is what the functions of a
// single row say.
#include "ops/choose_tokens.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/sampler.h"
#include "ops/elementwise.h"
#include "ops/log_softmax.h"
#include "ops/ref/choose_tokens.h"

namespace strata::ops {
namespace {

constexpr int64_t kRows = 7, kVocab = 203;

class ChooseTokens : public testing::TestWithParam<int> {
 protected:
  ChooseTokens() : backend_(choose_cpu_path(), GetParam()) {
    logits_ = backend_.scratch().take(DType::kF32, {kRows, kVocab});
    lse_ = backend_.scratch().take(DType::kF32, {kRows, 2});
    const Counter counter{.seed = 5, .stream = 1};
    for (int64_t i = 0; i < kRows * kVocab; ++i)
      logits_.f32()[i] = 6.0f * static_cast<float>(counter.uniform(static_cast<uint64_t>(i)));
  }
  [[nodiscard]] std::span<const float> row(int64_t i) const {
    return {logits_.f32() + i * kVocab, static_cast<size_t>(kVocab)};
  }
  // A choice of every kind, for the rows in turn.
  [[nodiscard]] static std::vector<TokenChoice> choices() {
    std::vector<TokenChoice> out;
    for (int64_t i = 0; i < 2 * kRows; ++i) {
      TokenChoice choice;
      choice.row = (3 * i) % kRows;
      choice.params = {.temperature = i % 3 == 0 ? 0.0f : 0.5f * static_cast<float>(i % 3),
                       .top_k = i % 4 == 1 ? 5 : 0,
                       .top_p = i % 5 == 2 ? 0.7f : 1.0f,
                       .min_p = i % 7 == 4 ? 0.3f : 0.0f,
                       .seed = static_cast<uint64_t>(i)};
      choice.step_index = static_cast<uint64_t>(10 + i);
      choice.scaled_logprobs = i % 2 == 0;
      choice.topk_ids.resize(static_cast<size_t>(i % 4));
      choice.topk_logprobs.resize(static_cast<size_t>(i % 4));
      out.push_back(choice);
    }
    return out;
  }
  void choose(std::vector<TokenChoice>& choices, TensorView lse) {
    std::vector<TokenChoice*> all;
    for (TokenChoice& choice : choices) all.push_back(&choice);
    choose_tokens(backend_, logits_, lse, all);
  }
  // log softmax of the row divided by `divisor`, in double.
  [[nodiscard]] double logprob(int64_t i, int32_t token, double divisor) const {
    double sum = 0;
    for (const float value : row(i)) sum += std::exp(value / divisor);
    return row(i)[static_cast<size_t>(token)] / divisor - std::log(sum);
  }

  CpuBackend backend_;
  TensorView logits_, lse_;
};
INSTANTIATE_TEST_SUITE_P(Threads, ChooseTokens, testing::Values(1, 3));

TEST_P(ChooseTokens, IsWhatSingleRowsSay) {
  ops::logsumexp(backend_, logits_, lse_);
  std::vector<TokenChoice> got = choices(), tokens_alone = choices();
  choose(got, lse_);
  choose(tokens_alone, {});
  int num_scaled = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const TokenChoice& c = got[i];
    EXPECT_EQ(c.error, "");
    EXPECT_EQ(c.token, cpu::choose_token(row(c.row), c.params, c.step_index));
    EXPECT_EQ(tokens_alone[i].token, c.token);
    EXPECT_EQ(tokens_alone[i].logprob, 0.0f);
    const double divisor = c.is_scaled() ? c.params.temperature : 1.0;
    num_scaled += c.is_scaled() ? 1 : 0;
    EXPECT_NEAR(c.logprob, logprob(c.row, c.token, divisor), 4e-6);
    std::vector<int32_t> ids(c.topk_ids.size());
    std::vector<float> unused(ids.size());
    cpu::write_topk_of_row(row(c.row), lse_.f32() + 2 * c.row, ids, unused);
    EXPECT_EQ(c.topk_ids, ids);
    for (size_t k = 0; k < ids.size(); ++k)
      EXPECT_NEAR(c.topk_logprobs[k], logprob(c.row, ids[k], divisor), 4e-6);
    // Alone, to the bit.
    std::vector<TokenChoice> alone = {choices()[i]};
    choose(alone, lse_);
    EXPECT_EQ(alone[0].token, c.token);
    EXPECT_EQ(alone[0].logprob, c.logprob);
    EXPECT_EQ(alone[0].topk_logprobs, c.topk_logprobs);
  }
  EXPECT_EQ(num_scaled, 2);
}

// Changes count in the choice of their row alone; the rest is said of the logits as they are.
TEST_P(ChooseTokens, ChangesOfLogitsMoveTheChoiceAlone) {
  ops::logsumexp(backend_, logits_, lse_);
  std::vector<TokenChoice> plain = choices(), zeros = choices(), banned = choices();
  choose(plain, lse_);
  const LogitChange nothing[] = {{.token = 3, .add = 0.0f}, {.token = 8, .add = 0.0f}};
  for (TokenChoice& choice : zeros) choice.changes = nothing;
  choose(zeros, lse_);
  std::vector<LogitChange> bans;
  for (const TokenChoice& choice : plain) bans.push_back({.token = choice.token, .add = -1e30f});
  for (size_t i = 1; i < banned.size(); i += 2) banned[i].changes = std::span(bans).subspan(i, 1);
  const std::vector<float> before(logits_.f32(), logits_.f32() + kRows * kVocab);
  choose(banned, lse_);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), logits_.f32()));
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(zeros[i].token, plain[i].token);
    EXPECT_EQ(zeros[i].logprob, plain[i].logprob);
    EXPECT_EQ(zeros[i].topk_ids, plain[i].topk_ids);
    EXPECT_EQ(banned[i].error, "");
    EXPECT_EQ(banned[i].topk_logprobs, plain[i].topk_logprobs);
    if (banned[i].changes.empty()) {
      EXPECT_EQ(banned[i].token, plain[i].token);
      EXPECT_EQ(banned[i].logprob, plain[i].logprob);
      continue;
    }
    std::vector<float> changed(row(plain[i].row).begin(), row(plain[i].row).end());
    changed[static_cast<size_t>(plain[i].token)] -= 1e30f;
    EXPECT_NE(banned[i].token, plain[i].token);
    EXPECT_EQ(banned[i].token, cpu::choose_token(changed, plain[i].params, plain[i].step_index));
    const double divisor = plain[i].is_scaled() ? plain[i].params.temperature : 1.0;
    EXPECT_NEAR(banned[i].logprob, logprob(plain[i].row, banned[i].token, divisor), 4e-6);
  }
}

// Choices of every kind with bias and penalties of every kind.
class ChangedTokens : public ChooseTokens {
 protected:
  ChangedTokens() {
    const Counter counter{.seed = 6, .stream = 2};
    for (uint64_t i = 0; i < 300; ++i)  // few different ones, so that counts go up
      before_.push_back(static_cast<int32_t>(counter.words(i)[0] % 40));
    for (size_t i = 0; i < choices().size(); ++i)
      answers_.push_back(counts_of(std::span(before_).subspan(100 + i, 8 * (i % 3))));
    // Negative logits too.
    for (int64_t i = 0; i < kRows * kVocab; ++i) logits_.f32()[i] -= 3.0f;
    ops::logsumexp(backend_, logits_, lse_);
  }
  [[nodiscard]] std::vector<TokenChoice> changed_choices() const {
    std::vector<TokenChoice> out = choices();
    const std::span<const int32_t> before(before_);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].penalties = {.repetition = i % 2 == 0 ? 1.0f : 0.7f + 0.1f * static_cast<float>(i),
                          .frequency = i % 3 == 0 ? 0.0f : 0.25f * static_cast<float>(i % 4),
                          .presence = i % 4 == 1   ? -1.5f
                                      : i % 4 == 3 ? 0.5f
                                                   : 0.0f};
      if (i % 5 == 0) out[i].changes = bias_;
      out[i].before = {.prompt = before.subspan(i, 40),
                       .answer = answers_[i],
                       .drafts = before.subspan(200 + i, i % 4)};
    }
    return out;
  }

  std::vector<int32_t> before_;
  std::vector<std::vector<TokenCount>> answers_;
  const LogitChange bias_[3] = {
      {.token = 7, .add = 4.0f}, {.token = 11, .add = -100.0f}, {.token = 7, .add = 1.5f}};
};
INSTANTIATE_TEST_SUITE_P(Threads, ChangedTokens, testing::Values(1, 3));

TEST_P(ChangedTokens, AreOfTheReferencesLogits) {
  std::vector<TokenChoice> got = changed_choices(), plain = choices();
  choose(got, lse_);
  choose(plain, lse_);
  int num_changed = 0, num_moved = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const TokenChoice& c = got[i];
    ASSERT_EQ(c.error, "");
    num_changed += c.is_changed() ? 1 : 0;
    num_moved += c.token != plain[i].token ? 1 : 0;
    const std::vector<double> changed = ref::changed_logits(row(c.row), c);
    double margin = 0;
    const auto want = ref::choice_probabilities(changed, c.params, &margin);
    EXPECT_TRUE(want.contains(c.token) || margin < 1e-6) << "choice " << i;
    // The reference in fp32 is what is chosen from, to the last bit that a choice shows.
    const std::vector<float> rounded(changed.begin(), changed.end());
    EXPECT_EQ(c.token, cpu::choose_token(rounded, c.params, c.step_index)) << "choice " << i;
    // What is said of the token and of the largest is of the row as it is.
    const double divisor = c.is_scaled() ? c.params.temperature : 1.0;
    EXPECT_NEAR(c.logprob, logprob(c.row, c.token, divisor), 4e-6);
    EXPECT_EQ(c.topk_ids, plain[i].topk_ids);
    EXPECT_EQ(c.topk_logprobs, plain[i].topk_logprobs);
    // Alone, to the bit.
    std::vector<TokenChoice> alone = {changed_choices()[i]};
    choose(alone, lse_);
    EXPECT_EQ(alone[0].token, c.token);
    EXPECT_EQ(alone[0].logprob, c.logprob);
    EXPECT_EQ(alone[0].topk_logprobs, c.topk_logprobs);
  }
  EXPECT_EQ(num_changed, 10);
  EXPECT_GE(num_moved, 4);
}

TEST(CountToken, CountsEachTokenOnce) {
  const std::vector<int32_t> tokens = {5, 2, 5, 9, 2, 5, 0};
  const std::vector<TokenCount> counts = counts_of(tokens);
  ASSERT_EQ(counts.size(), 4u);
  const int32_t kWant[][2] = {{0, 1}, {2, 2}, {5, 3}, {9, 1}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(counts[i].token, kWant[i][0]);
    EXPECT_EQ(counts[i].count, kWant[i][1]);
  }
}

// Drafts count as the answer's last tokens: how the answer is divided between the two changes
// nothing.
TEST_P(ChangedTokens, CountDraftsAsTheAnswers) {
  std::vector<TokenChoice> divided = changed_choices(), whole = changed_choices();
  std::vector<std::vector<TokenCount>> answers;
  for (TokenChoice& choice : whole) {
    TokensBefore& before = choice.before;
    std::vector<TokenCount>& answer =
        answers.emplace_back(before.answer.begin(), before.answer.end());
    for (const int32_t token : before.drafts) increment_token_count(answer, token);
    before.drafts = {};
  }
  for (size_t i = 0; i < whole.size(); ++i) whole[i].before.answer = answers[i];
  choose(divided, lse_);
  choose(whole, lse_);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(divided[i].token, whole[i].token);
}

// At its neutral value nothing is copied: the row that is chosen from is the model's own.
TEST_P(ChangedTokens, NeutralOptionsCopyNothing) {
  std::vector<TokenChoice> plain = choices(), neutral = choices();
  const std::span<const int32_t> before(before_);
  for (TokenChoice& choice : neutral) {
    choice.penalties = {.repetition = 1.0f, .frequency = 0.0f, .presence = -0.0f};
    choice.before = {.prompt = before, .answer = answers_[2], .drafts = before};
    EXPECT_FALSE(choice.is_changed());
  }
  choose(plain, lse_);
  choose(neutral, lse_);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(neutral[i].token, plain[i].token);
    EXPECT_EQ(neutral[i].logprob, plain[i].logprob);
    EXPECT_EQ(neutral[i].topk_logprobs, plain[i].topk_logprobs);
  }
}

// A counting backend takes the memory of such a choice and gives no answer.
TEST(ChooseTokensPlan, CountsRowsOfTheirOwn) {
  const LogitChange change[] = {{.token = 1, .add = -1.0f}};
  for (const bool changes : {false, true}) {
    CpuBackend counter = CpuBackend::counting(choose_cpu_path(), 2);
    CpuBackend backend(choose_cpu_path(), 2);
    int64_t taken[2];
    for (CpuBackend* each : {&counter, &backend}) {
      const Scratch::Mark mark(each->scratch());
      const TensorView logits = each->scratch().take(DType::kF32, {2, 40});
      const TensorView lse = each->scratch().take(DType::kF32, {2, 2});
      ops::fill(*each, logits, 0.5f);
      ops::logsumexp(*each, logits, lse);
      std::vector<TokenChoice> all(2);
      all[0].scaled_logprobs = true;
      all[0].params.temperature = 0.5f;
      all[0].penalties.presence = 0.5f;  // its row is the divided one's too
      if (changes) all[1].changes = change;
      TokenChoice* const choices[] = {all.data(), &all[1]};
      choose_tokens(*each, logits, lse, choices);
      taken[each == &counter ? 0 : 1] = each->scratch().high_water();
      if (each == &counter) {
        EXPECT_EQ(all[1].logprob, 0.0f);
      }
    }
    EXPECT_EQ(taken[0], taken[1]);
  }
}

TEST_P(ChooseTokens, ARowWithoutNumbersFailsAlone) {
  logits_.f32()[2 * kVocab + 17] = std::numeric_limits<float>::quiet_NaN();
  ops::logsumexp(backend_, logits_, lse_);
  std::vector<TokenChoice> got = choices();
  choose(got, lse_);
  for (const TokenChoice& c : got) {
    EXPECT_EQ(c.error.empty(), c.row != 2) << c.error;
    if (c.row == 2) {
      EXPECT_NE(c.error.find("token 17"), std::string::npos) << c.error;
    }
  }
  // A temperature so small that the divided logits are infinite.
  std::vector<TokenChoice> tiny(2);
  tiny[0].params.temperature = 1e-45f;
  tiny[0].scaled_logprobs = true;
  tiny[1].row = 1;
  choose(tiny, lse_);
  EXPECT_NE(tiny[0].error.find("divided by the temperature"), std::string::npos) << tiny[0].error;
  EXPECT_EQ(tiny[1].error, "");
}

TEST_P(ChooseTokens, DrawsAndLargestOfARow) {
  ops::logsumexp(backend_, logits_, lse_);
  std::vector<int32_t> ids(9), want(9);
  std::vector<float> logprobs(9), unused(9);
  draw_tokens(backend_, logits_, lse_, 3, {.temperature = 0.8f, .seed = 4}, 11, ids, logprobs);
  cpu::draw_from_row(row(3), 0.8f, 4, 11, want);
  EXPECT_EQ(ids, want);
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(logprobs[i], ops::logprob(row(3)[static_cast<size_t>(ids[i])], lse_.f32() + 2 * 3));
  compute_topk_logprobs(backend_, logits_, lse_, 3, ids, logprobs);
  cpu::write_topk_of_row(row(3), lse_.f32() + 2 * 3, want, unused);
  EXPECT_EQ(ids, want);
  EXPECT_EQ(logprobs, unused);
}

}  // namespace
}  // namespace strata::ops
