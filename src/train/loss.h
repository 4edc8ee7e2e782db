// Losses of one token, as Tinker defines them: sums, never means. With lp the target's logprob, w
// its weight, q the sampling logprob, A the advantage and r = exp(lp - q), all fp32:
//   cross_entropy        -w lp
//   importance_sampling  -w r A
//   ppo                  -w min(r A, clip(r, lo, hi) A)
//   cispo                -w stopgrad(clip(r, lo, hi)) A lp
//   dro                  -w (A lp - beta/2 (lp - q)^2)
//   gspo                 -w min(s_t A, clip(s_t, lo, hi) A), s_t = s exp(lp - stopgrad(lp)), where
//   s
//                        is one ratio for the sequence: exp of the mean of lp - q over its masked
//                        tokens (GSPO-token, arXiv 2507.18071)
//   stable_reinforce     w (-stopgrad(min(r, 2)) A lp + kl_coeff/2 (lp - q)^2) where the mask is
//   not
//                        0. The formula is Strata's own: the service does not publish its one.
// Where w is 0 the loss and its derivative are exactly 0, whatever the other inputs hold.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace strata::train {

enum class LossKind : uint8_t {
  kCrossEntropy,
  kImportanceSampling,
  kPpo,
  kCispo,
  kDro,
  kGspo,
  kStableReinforce
};

struct LossSpec {
  LossKind kind = LossKind::kCrossEntropy;
  float clip_low = 0.0f;  // absolute ratios, of ppo, cispo, gspo; defaults belong to the caller
  float clip_high = 0.0f;
  float beta = 0.0f;      // dro
  float kl_coeff = 0.0f;  // stable_reinforce
};

// What a loss reads beside the target's logprob and weight.
struct TokenContext {
  float sampling_logprob = 0.0f;
  float advantage = 0.0f;
  float mask = 1.0f;            // stable_reinforce
  float sequence_ratio = 1.0f;  // gspo's s
};

struct TokenLoss {
  float loss = 0.0f;
  float d_logprob = 0.0f;  // derivative of the loss by lp
};

TokenLoss token_loss(const LossSpec& spec, float logprob, float weight,
                     const TokenContext& context);

std::optional<LossKind> loss_named(std::string_view name);
// Losses other than cross_entropy read sampling logprobs and advantages.
constexpr bool needs_advantages(LossKind kind) { return kind != LossKind::kCrossEntropy; }
// gspo and stable_reinforce read a mask.
constexpr bool needs_mask(LossKind kind) {
  return kind == LossKind::kGspo || kind == LossKind::kStableReinforce;
}

}  // namespace strata::train
