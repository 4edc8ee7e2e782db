// SPDX-License-Identifier: Apache-2.0
// How the tokens of one sampling step are shared among those whose rows run. With one owner all
// rows that decode go, and prompts get what is left. With several each gets as much as another
// (max-min): who asks for less than the share gets all of it. Plain arithmetic.
#pragma once
#include <cstdint>
#include <span>

namespace strata::engine {

struct StepClaim {
  uint64_t owner = 0;
  int64_t decoding = 0;  // rows that would give a token
  int64_t prompt = 0;    // tokens that would be read
  // What it gets.
  int64_t granted_decoding = 0;
  int64_t granted_prompt = 0;
};

// `budget` >= 1 tokens; `turn` says with whom the first share begins, so that none is always last
// when there are more owners than tokens.
void share_step(std::span<StepClaim> claims, int64_t budget, uint64_t turn);

}  // namespace strata::engine
