#include "train/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace strata::train {
namespace {

constexpr float kSequenceRatio = 1.125f;

// The table of losses in double, written from its definition.
double reference(const LossSpec& spec, double lp, double w, double q, double a, double frozen_lp) {
  const double frozen_ratio = std::exp(frozen_lp - q);
  const double r = std::exp(lp - q);
  const double lo = static_cast<double>(spec.clip_low);
  const double hi = static_cast<double>(spec.clip_high);
  switch (spec.kind) {
    case LossKind::kCrossEntropy:
      return -w * lp;
    case LossKind::kImportanceSampling:
      return -w * r * a;
    case LossKind::kPpo:
      return -w * std::min(r * a, std::clamp(r, lo, hi) * a);
    case LossKind::kCispo:
      return -w * std::clamp(frozen_ratio, lo, hi) * a * lp;
    case LossKind::kDro:
      return -w * (lp * a - 0.5 * static_cast<double>(spec.beta) * (lp - q) * (lp - q));
    case LossKind::kGspo: {
      const double s = static_cast<double>(kSequenceRatio) * std::exp(lp - frozen_lp);
      return -w * std::min(s * a, std::clamp(s, lo, hi) * a);
    }
    case LossKind::kStableReinforce:
      return w * (-std::min(frozen_ratio, 2.0) * a * lp +
                  0.5 * static_cast<double>(spec.kl_coeff) * (lp - q) * (lp - q));
  }
  return 0.0;
}

constexpr LossKind kKinds[] = {LossKind::kCrossEntropy,
                               LossKind::kImportanceSampling,
                               LossKind::kPpo,
                               LossKind::kCispo,
                               LossKind::kDro,
                               LossKind::kGspo,
                               LossKind::kStableReinforce};

// Values to 8 roundings of fp32; slopes against a central difference of the double reference.
TEST(Loss, ValuesAndSlopesMatchTheDefinition) {
  for (const LossKind kind : kKinds) {
    const LossSpec spec = {
        .kind = kind, .clip_low = 0.8f, .clip_high = 1.2f, .beta = 0.05f, .kl_coeff = 0.3f};
    for (const float lp : {-0.01f, -1.5f, -9.0f}) {
      for (const float gap : {-0.7f, -0.1f, 0.05f, 0.6f}) {
        for (const float a : {-2.0f, 0.0f, 1.5f}) {
          for (const float w : {-0.5f, 0.25f, 1.0f}) {
            const float q = lp - gap;
            const TokenContext context = {
                .sampling_logprob = q, .advantage = a, .sequence_ratio = kSequenceRatio};
            const TokenLoss got = token_loss(spec, lp, w, context);
            const auto f = [&](double x) { return reference(spec, x, w, q, a, lp); };
            const double value = f(lp);
            EXPECT_NEAR(got.loss, value, 1e-6 * std::max(1.0, std::fabs(value)));
            constexpr double kStep = 1e-6;
            const double slope = (f(lp + kStep) - f(lp - kStep)) / (2.0 * kStep);
            EXPECT_NEAR(got.d_logprob, slope, 1e-5 * std::max(1.0, std::fabs(slope)));
          }
        }
      }
    }
  }
}

TEST(Loss, WeightZeroIsExactlyZeroWhateverTheInputs) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const LossKind kind : kKinds) {
    for (const float x : {inf, -inf, nan}) {
      const TokenLoss got =
          token_loss({.kind = kind, .clip_low = 0.8f, .clip_high = 1.2f}, x, 0.0f,
                     {.sampling_logprob = x, .advantage = x, .sequence_ratio = x});
      EXPECT_EQ(got.loss, 0.0f);
      EXPECT_EQ(got.d_logprob, 0.0f);
    }
  }
}

// On policy the ratio is exactly 1, so nothing is clipped and the policy gradient is exact.
TEST(Loss, OnPolicyRatioIsOne) {
  for (const LossKind kind : kKinds) {
    if (kind == LossKind::kCrossEntropy) continue;
    const TokenLoss got = token_loss({.kind = kind, .clip_low = 0.8f, .clip_high = 1.2f}, -3.25f,
                                     1.0f, {.sampling_logprob = -3.25f, .advantage = 2.0f});
    EXPECT_EQ(got.d_logprob, -2.0f);
  }
}

// Beyond a ratio of 2 the pull of stable_reinforce is bounded; outside its mask nothing happens.
TEST(Loss, StableReinforceIsBoundedAndMasked) {
  const LossSpec spec = {.kind = LossKind::kStableReinforce};
  const TokenContext far = {.sampling_logprob = -9.0f, .advantage = 1.5f};
  EXPECT_EQ(token_loss(spec, -1.0f, 1.0f, far).d_logprob, -3.0f);
  TokenContext masked = far;
  masked.mask = 0.0f;
  EXPECT_EQ(token_loss(spec, -1.0f, 1.0f, masked).d_logprob, 0.0f);
  EXPECT_EQ(token_loss(spec, -1.0f, 1.0f, masked).loss, 0.0f);
}

TEST(Loss, Names) {
  EXPECT_EQ(loss_named("gspo"), LossKind::kGspo);
  EXPECT_EQ(loss_named("stable_reinforce"), LossKind::kStableReinforce);
  EXPECT_EQ(loss_named("ppo"), LossKind::kPpo);
  EXPECT_EQ(loss_named("cispo"), LossKind::kCispo);
  EXPECT_FALSE(loss_named("PPO").has_value());
  EXPECT_FALSE(needs_advantages(LossKind::kCrossEntropy));
}

}  // namespace
}  // namespace strata::train
