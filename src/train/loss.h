// Losses of one token, as Tinker defines them: sums, never means. With lp the target's logprob, w
// its weight, q the sampling logprob, A the advantage and r = exp(lp - q), all fp32:
//   cross_entropy        -w lp
//   importance_sampling  -w r A
//   ppo                  -w min(r A, clip(r, lo, hi) A)
//   cispo                -w stopgrad(clip(r, lo, hi)) A lp
// Where w is 0 the loss and its derivative are exactly 0, whatever the other inputs hold.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace strata::train {

enum class LossKind : uint8_t { kCrossEntropy, kImportanceSampling, kPpo, kCispo };

struct LossSpec {
  LossKind kind = LossKind::kCrossEntropy;
  float clip_low = 0.0f;  // absolute ratios, used by ppo and cispo; defaults belong to the caller
  float clip_high = 0.0f;
};

struct TokenLoss {
  float loss = 0.0f;
  float d_logprob = 0.0f;  // derivative of the loss by lp
};

TokenLoss token_loss(const LossSpec& spec, float logprob, float weight, float sampling_logprob,
                     float advantage);

std::optional<LossKind> loss_named(std::string_view name);
// Losses other than cross_entropy read sampling logprobs and advantages.
constexpr bool needs_advantages(LossKind kind) { return kind != LossKind::kCrossEntropy; }

}  // namespace strata::train
