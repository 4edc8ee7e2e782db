#include "train/loss.h"

#include <algorithm>
#include <cmath>

namespace strata::train {

TokenLoss token_loss(const LossSpec& spec, float lp, float w, float q, float advantage) {
  if (w == 0.0f) return {};
  if (spec.kind == LossKind::kCrossEntropy) return {-w * lp, -w};
  const float ratio = std::exp(lp - q);
  const float clipped = std::clamp(ratio, spec.clip_low, spec.clip_high);
  switch (spec.kind) {
    case LossKind::kCrossEntropy:
      break;
    case LossKind::kImportanceSampling: {
      // d exp(lp - q) / d lp = ratio
      const float loss = -w * (ratio * advantage);
      return {loss, loss};
    }
    case LossKind::kPpo: {
      const float plain = ratio * advantage;
      const float bounded = clipped * advantage;
      // The clipped branch is constant in lp where it is the smaller one.
      if (bounded < plain) return {-w * bounded, 0.0f};
      return {-w * plain, -w * plain};
    }
    case LossKind::kCispo: {
      const float slope = -w * (clipped * advantage);
      return {slope * lp, slope};
    }
  }
  return {};
}

std::optional<LossKind> loss_named(std::string_view name) {
  if (name == "cross_entropy") return LossKind::kCrossEntropy;
  if (name == "importance_sampling") return LossKind::kImportanceSampling;
  if (name == "ppo") return LossKind::kPpo;
  if (name == "cispo") return LossKind::kCispo;
  return std::nullopt;
}

}  // namespace strata::train
