// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <cstdint>

#include "ops/cpu/limits.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

// Four products a step of two tiles of rows by two of a panel, from L1, as a product's loop has
// them. The values are drawn: the units are faster on zeros than on numbers.
constexpr int kTiles = 16;
constexpr int64_t kWords = kTileBytes / 4;

struct alignas(64) Operands {
  uint32_t words[kTiles][kWords];

  Operands() {
    uint32_t state = 1;
    for (auto& tile : words) {
      for (uint32_t& word : tile) {
        state = state * 1664525u + 1013904223u;
        // Signs and seven bits of mantissa of two numbers from 1 to 2.
        word = (state & 0x807f807fu) | 0x3f803f80u;
      }
    }
  }
};

void run_multiply_adds(int64_t iterations) {
  static const Operands operands;
  const TileRegion region;
  configure_tiles();
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (int64_t i = 0; i < iterations; ++i) {
    const auto* tiles = operands.words[i % (kTiles / 4) * 4];
    load_tile<4>(tiles, 64);
    load_tile<5>(tiles + kWords, 64);
    load_tile<6>(tiles + 2 * kWords, 64);
    load_tile<7>(tiles + 3 * kWords, 64);
    multiply_tiles<0, 4, 6>();
    multiply_tiles<1, 4, 7>();
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
  }
}

}  // namespace

LimitLoop limit_loop_amx_tiles() {
  constexpr int64_t kFlops = 2 * kTileHeight * 2 * kGroupSteps * 16;  // of a product of tiles
  return {.run = run_multiply_adds, .flops = 4 * kFlops};
}

}  // namespace strata::ops::cpu
#endif
