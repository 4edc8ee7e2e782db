#include "train/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace strata::train {
namespace {

// The table of losses in double, written from its definition.
double reference(const LossSpec& spec, double lp, double w, double q, double a,
                 double frozen_ratio) {
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
  }
  return 0.0;
}

constexpr LossKind kKinds[] = {LossKind::kCrossEntropy, LossKind::kImportanceSampling,
                               LossKind::kPpo, LossKind::kCispo};

// Values to 8 roundings of fp32; slopes against a central difference of the double reference.
TEST(Loss, ValuesAndSlopesMatchTheDefinition) {
  for (const LossKind kind : kKinds) {
    const LossSpec spec = {.kind = kind, .clip_low = 0.8f, .clip_high = 1.2f};
    for (const float lp : {-0.01f, -1.5f, -9.0f}) {
      for (const float gap : {-0.7f, -0.1f, 0.05f, 0.6f}) {
        for (const float a : {-2.0f, 0.0f, 1.5f}) {
          for (const float w : {-0.5f, 0.25f, 1.0f}) {
            const float q = lp - gap;
            const TokenLoss got = token_loss(spec, lp, w, q, a);
            const double ratio = std::exp(static_cast<double>(lp) - static_cast<double>(q));
            const auto f = [&](double x) { return reference(spec, x, w, q, a, ratio); };
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
          token_loss({.kind = kind, .clip_low = 0.8f, .clip_high = 1.2f}, x, 0.0f, x, x);
      EXPECT_EQ(got.loss, 0.0f);
      EXPECT_EQ(got.d_logprob, 0.0f);
    }
  }
}

// On policy the ratio is exactly 1, so nothing is clipped and the policy gradient is exact.
TEST(Loss, OnPolicyRatioIsOne) {
  for (const LossKind kind : {LossKind::kImportanceSampling, LossKind::kPpo, LossKind::kCispo}) {
    const TokenLoss got =
        token_loss({.kind = kind, .clip_low = 0.8f, .clip_high = 1.2f}, -3.25f, 1.0f, -3.25f, 2.0f);
    EXPECT_EQ(got.d_logprob, -2.0f);
  }
}

TEST(Loss, Names) {
  EXPECT_EQ(loss_named("ppo"), LossKind::kPpo);
  EXPECT_EQ(loss_named("cispo"), LossKind::kCispo);
  EXPECT_FALSE(loss_named("PPO").has_value());
  EXPECT_FALSE(needs_advantages(LossKind::kCrossEntropy));
}

}  // namespace
}  // namespace strata::train
