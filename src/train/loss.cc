#include "train/loss.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace strata::train {
namespace {

constexpr float kMaxStableRatio = 2.0f;

// -w min(ratio A, clip(ratio) A), with d ratio / d lp = ratio.
TokenLoss clipped_loss(const LossSpec& spec, float ratio, float w, float advantage) {
  const float plain = ratio * advantage;
  const float bounded = std::clamp(ratio, spec.clip_low, spec.clip_high) * advantage;
  // The clipped branch is constant in lp where it is the smaller one.
  if (bounded < plain) return {-w * bounded, 0.0f};
  return {-w * plain, -w * plain};
}

}  // namespace

TokenLoss token_loss(const LossSpec& spec, float lp, float w, const TokenContext& context) {
  if (w == 0.0f) return {};
  if (spec.kind == LossKind::kCrossEntropy) return {-w * lp, -w};
  const float q = context.sampling_logprob;
  const float advantage = context.advantage;
  switch (spec.kind) {
    case LossKind::kCrossEntropy:
      break;
    case LossKind::kImportanceSampling: {
      // d exp(lp - q) / d lp = ratio
      const float loss = -w * (std::exp(lp - q) * advantage);
      return {loss, loss};
    }
    case LossKind::kPpo:
      return clipped_loss(spec, std::exp(lp - q), w, advantage);
    case LossKind::kCispo: {
      const float clipped = std::clamp(std::exp(lp - q), spec.clip_low, spec.clip_high);
      const float slope = -w * (clipped * advantage);
      return {slope * lp, slope};
    }
    case LossKind::kDro: {
      const float gap = lp - q;
      return {-w * (lp * advantage - 0.5f * spec.beta * (gap * gap)),
              -w * (advantage - spec.beta * gap)};
    }
    case LossKind::kGspo:
      return clipped_loss(spec, context.sequence_ratio, w, advantage);
    case LossKind::kStableReinforce: {
      if (context.mask == 0.0f) return {};
      const float gap = lp - q;
      const float pull = std::min(std::exp(gap), kMaxStableRatio) * advantage;
      return {w * (-pull * lp + 0.5f * spec.kl_coeff * (gap * gap)),
              w * (-pull + spec.kl_coeff * gap)};
    }
  }
  return {};
}

std::optional<LossKind> loss_named(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<LossKind>(found - std::begin(kNames));
}

}  // namespace strata::train
