// SPDX-License-Identifier: Apache-2.0
// Intel's tile registers (AMX): whether this process may use them, and their instructions. All
// eight tiles are configured with 16 rows of 64 bytes, always: shorter operands are padded with
// zeros, which gives the bits of a group of 16 pairs. A tile product adds to each of 16 x 16 f32
// sums one group: even = fma chain of a[2k] b[2k], odd = that of a[2k + 1] b[2k + 1], sum += even +
// odd, with denormals taken for zero throughout (Intel SDM, TDPBF16PS). The instructions are
// written here because the compiler's own (gcc 12) say too little about the memory that they read.
#pragma once
#include <cstdint>
#include <string>

namespace strata::ops::cpu {

constexpr int64_t kGroupSteps = 16;  // pairs of bf16 in a row of a tile: a group of the path amx
constexpr int64_t kTileHeight = 16;  // rows
constexpr int64_t kTileBytes = kTileHeight * kGroupSteps * 4;

// Whether the processor has tiles for bf16 and the kernel lets this process use them. Asked of the
// kernel once; any thread.
bool tiles_granted();
// Empty where they are, else the reason in words.
const std::string& why_no_tiles();

// Whether this thread's tiles are configured.
extern constinit thread_local bool thread_has_tiles;

// Gives a thread's tiles back when a piece of work ends: the kernel then saves less at a switch,
// and the core may sleep deeper.
class TileRegion {
 public:
  TileRegion() = default;
  ~TileRegion() {
    if (!thread_has_tiles) return;
    __asm__ volatile("tilerelease" : : : "memory");
    thread_has_tiles = false;
  }
  TileRegion(const TileRegion&) = delete;
  TileRegion& operator=(const TileRegion&) = delete;
};

namespace {

[[gnu::always_inline]] inline void configure_tiles() {
  if (thread_has_tiles) return;
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const config;
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
  thread_has_tiles = true;
}

template <int kTile>
[[gnu::always_inline]] inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Sixteen rows of 64 bytes, `stride` bytes apart.
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                   :
                   : "i"(kTile), "r"(from), "r"(stride)
                   : "memory");
}

template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                   :
                   : "i"(kTile), "r"(to), "r"(stride)
                   : "memory");
}

// Tile kSum [16 rows][16 lanes] f32 += tile kRows [16 rows][16 pairs] by tile kPanel [16 pairs]
// [16 lanes] of pairs.
template <int kSum, int kRows, int kPanel>
[[gnu::always_inline]] inline void multiply_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kRows), "i"(kPanel));
}

}  // namespace
}  // namespace strata::ops::cpu
