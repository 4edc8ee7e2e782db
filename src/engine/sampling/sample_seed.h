// SPDX-License-Identifier: Apache-2.0
// The seed that sample i of a server's request draws with. Others who want the same answer use it.
#pragma once
#include <cstdint>

#include "base/rng.h"

namespace strata::engine {

inline uint64_t sample_seed(uint64_t seed, int64_t i) {
  constexpr uint64_t kSeedStream = 0x73657276652d31;  // keeps these seeds apart from other draws
  const auto words = Counter{.seed = seed, .stream = kSeedStream}.words(static_cast<uint64_t>(i));
  return uint64_t{words[0]} << 32 | words[1];
}

}  // namespace strata::engine
