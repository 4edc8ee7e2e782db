// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). A draw is a pure function of (seed, stream, index): no state, any order, any
// thread.
#pragma once
#include <array>
#include <cstdint>

namespace strata {

struct Counter {
  uint64_t seed = 0;
  uint64_t stream = 0;

  // Four independent 32-bit words for this index.
  [[nodiscard]] std::array<uint32_t, 4> words(uint64_t index) const;
  // Uniform in [0, 1) with 53 bits.
  [[nodiscard]] double uniform(uint64_t index) const;
  // Standard normal (Box-Muller on the four words).
  [[nodiscard]] double normal(uint64_t index) const;
};

// A stable 64-bit hash of a name (FNV-1a), to key a stream by a module's path.
uint64_t hash_name(const char* data, uint64_t size);

}  // namespace strata
