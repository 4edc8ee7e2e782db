// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/step_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace strata::engine {
namespace {

// At least a quarter of a step is for prompts that wait: a full batch must not hold them up.
int64_t least_prompt(int64_t budget) { return (budget + 3) / 4; }

int64_t wanted(const StepClaim& claim) { return claim.decoding + claim.prompt; }
int64_t granted(const StepClaim& claim) { return claim.granted_decoding + claim.granted_prompt; }

// Rows that decode come first, but for what prompts get at least.
void divide(StepClaim& claim, int64_t share) {
  const int64_t for_prompt = std::min(claim.prompt, share < 2 ? 0 : least_prompt(share));
  claim.granted_decoding = std::min(claim.decoding, share - for_prompt);
  claim.granted_prompt = std::min(claim.prompt, share - claim.granted_decoding);
}

}  // namespace

void share_step(std::span<StepClaim> claims, int64_t budget, uint64_t turn) {
  CHECK(budget >= 1, budget);
  if (claims.empty()) return;
  if (claims.size() == 1) {
    StepClaim& only = claims[0];
    only.granted_decoding = only.decoding;
    only.granted_prompt =
        std::min(only.prompt, std::max(budget - only.decoding, least_prompt(budget)));
    return;
  }
  int64_t left = budget;
  while (left > 0) {
    int64_t unmet = 0;
    for (const StepClaim& claim : claims) unmet += granted(claim) < wanted(claim) ? 1 : 0;
    if (unmet == 0) return;
    const int64_t each = std::max<int64_t>(1, left / unmet);
    for (size_t i = 0; i < claims.size(); ++i) {
      StepClaim& claim = claims[(turn + i) % claims.size()];
      const int64_t more = std::min({each, left, wanted(claim) - granted(claim)});
      if (more <= 0) continue;
      divide(claim, granted(claim) + more);
      left -= more;
    }
  }
}

}  // namespace strata::engine
