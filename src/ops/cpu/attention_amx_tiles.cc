// SPDX-License-Identifier: Apache-2.0
// Products of attention by tiles. A block of sums is two strips of 16 rows by two tiles of 16
// lanes, or one strip by four, for few rows: four tiles of sums, so that no product waits for the
// one before it. Strips that are not full go through zeroed copies: a row's bits know no other row.
#include "ops/cpu/attention_amx_avx512.h"
#include "ops/cpu/unroll.h"

namespace strata::ops::cpu {
namespace {

static_assert(kMostTileRows % (2 * kTileHeight) == 0);

// Tiles: sums have 0 to 3, rows of x 4 and 5, the panel the two behind them in turn.
constexpr int kFirstRowsTile = 4;

// Groups of x in rows form, and of the panel.
struct TileGroups {
  const uint32_t* x;
  int64_t x_row;  // words
  const uint32_t* panel;
  int64_t count;
};

void copy_row(const float* from, float* to) {
  Avx512::store(to, Avx512::load(from, Whole{}), Whole{});
}

// `rows` rows of sums.
template <int kTile>
[[gnu::always_inline]] inline void load_sums(const float* acc, int64_t stride, int64_t rows) {
  if (rows >= kTileHeight) return load_tile<kTile>(acc, 4 * stride);
  alignas(64) float copy[kTileHeight * kLanes] = {};
  for (int64_t r = 0; r < rows; ++r) copy_row(acc + r * stride, copy + r * kLanes);
  load_tile<kTile>(copy, 4 * kLanes);
}

template <int kTile>
[[gnu::always_inline]] inline void store_sums(float* acc, int64_t stride, int64_t rows) {
  if (rows >= kTileHeight) return store_tile<kTile>(acc, 4 * stride);
  alignas(64) float copy[kTileHeight * kLanes];
  store_tile<kTile>(copy, 4 * kLanes);
  for (int64_t r = 0; r < rows; ++r) copy_row(copy + r * kLanes, acc + r * stride);
}

// kStrips strips from `row` on by kColumns tiles of lanes from `lane` on.
template <int kStrips, int kColumns>
void multiply_block(const ProductTile& t, const TileGroups& groups, int64_t row, int64_t lane,
                    bool from_zero) {
  constexpr int kFirstPanelTile = kFirstRowsTile + kStrips;
  constexpr int kPanelTiles = 8 - kFirstPanelTile;
  const auto for_sums = [&](auto&& body) __attribute__((always_inline)) {
    unroll<kStrips * kColumns>([&](auto sum) __attribute__((always_inline)) {
      constexpr int kStrip = sum / kColumns;
      const int64_t first = row + kStrip * kTileHeight;
      body(sum, t.acc + first * t.acc_stride + lane + sum % kColumns * kLanes, t.rows - first);
    });
  };
  for_sums([&](auto sum, float* acc, int64_t rows) __attribute__((always_inline)) {
    if (from_zero) {
      zero_tile<sum>();
    } else {
      load_sums<sum>(acc, t.acc_stride, rows);
    }
  });
  const uint32_t* x = groups.x + row * groups.x_row;
  const uint32_t* panel = groups.panel + lane;
  for (int64_t group = 0; group < groups.count; ++group) {
    unroll<kStrips>([&](auto strip) __attribute__((always_inline)) {
      load_tile<kFirstRowsTile + strip>(x + strip * kTileHeight * groups.x_row, 4 * groups.x_row);
    });
    unroll<kColumns>([&](auto column) __attribute__((always_inline)) {
      constexpr int kPanel = kFirstPanelTile + column % kPanelTiles;
      load_tile<kPanel>(panel + column * kLanes, 4 * t.panel_width);
      unroll<kStrips>([&](auto strip) __attribute__((always_inline)) {
        multiply_tiles<strip * kColumns + column, kFirstRowsTile + strip, kPanel>();
      });
    });
    x += kGroupSteps;
    panel += kGroupSteps * t.panel_width;
  }
  for_sums([&](auto sum, float* acc, int64_t rows)
               __attribute__((always_inline)) { store_sums<sum>(acc, t.acc_stride, rows); });
}

// kColumns tiles of lanes at a time, from `lane` on; the panel's stay in L1 for all rows.
template <int kColumns>
void multiply_columns(const ProductTile& t, const TileGroups& groups, int64_t& lane,
                      bool from_zero) {
  for (; lane + kColumns * kLanes <= t.lanes; lane += kColumns * kLanes) {
    int64_t row = 0;
    if constexpr (kColumns <= 2) {
      for (; row + kTileHeight < t.rows; row += 2 * kTileHeight) {
        multiply_block<2, kColumns>(t, groups, row, lane, from_zero);
      }
    }
    if (row < t.rows) multiply_block<1, kColumns>(t, groups, row, lane, from_zero);
  }
}

void add_tile_groups(const ProductTile& t, const TileGroups& groups, bool from_zero) {
  int64_t lane = 0;
  if (t.rows <= kTileHeight) multiply_columns<4>(t, groups, lane, from_zero);
  multiply_columns<2>(t, groups, lane, from_zero);
  multiply_columns<1>(t, groups, lane, from_zero);
}

constexpr int64_t kMostRowsByFma = 2;  // decode of few heads a group: a strip would be mostly zeros
constexpr int64_t kCopiedGroups = kMostQueryTile / (2 * kGroupSteps);
constexpr int64_t kCopiedRow = kCopiedGroups * kGroupSteps;

// Copies the rows of x's group that starts at step `begin`; rows behind them, up to a whole strip,
// become zero.
void copy_group(const ProductTile& t, int64_t begin, uint32_t* to) {
  for (int64_t r = 0; r < t.rows || r % kTileHeight != 0; ++r) {
    auto words = Avx512::set1(0.0f);
    if (r < t.rows) words = word_lanes<AmxPairs>(t.x + r * t.x_row + begin);
    Avx512::store(reinterpret_cast<float*>(to + r * kCopiedRow), words, Whole{});
  }
}

// Copies the group that starts at step `begin` from depth form to rows form. Steps before the first
// (`begin` may be negative) and from the last on become zero.
void transpose_group(const ProductTile& t, int64_t begin, uint32_t* to) {
  for (int64_t row = 0; row < t.rows; row += kLanes) {
    Avx512::F words[kLanes];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) {
      words[i] = Avx512::set1(0.0f);
      if (begin + i >= 0 && begin + i < t.steps) {
        words[i] = word_lanes<AmxPairs>(t.x + row + (begin + i) * t.x_step);
      }
    }
    transpose_16x16(words);
#pragma GCC unroll 16
    for (int64_t r = 0; r < kLanes; ++r) {
      Avx512::store(reinterpret_cast<float*>(to + (row + r) * kCopiedRow), words[r], Whole{});
    }
  }
}

void add_groups_by_tiles(const ProductTile& t, bool from_zero) {
  if (t.rows <= kMostRowsByFma) return add_groups_by_fma<AmxPairs>(t, from_zero);
  configure_tiles();
  const int64_t count = (t.phase + t.steps + kGroupSteps - 1) / kGroupSteps;
  const uint32_t* panel = t.panel - t.phase * t.panel_width;
  const bool in_rows_form = t.x_step == 1;
  if (in_rows_form && t.rows % kTileHeight == 0) {
    if (t.steps > 0) add_tile_groups(t, {t.x, t.x_row, panel, count}, from_zero);
    return;
  }
  alignas(64) uint32_t x[kMostTileRows * kCopiedRow];
  for (int64_t first = 0; first < count; first += kCopiedGroups) {
    const int64_t copied = count - first < kCopiedGroups ? count - first : kCopiedGroups;
    for (int64_t i = 0; i < copied; ++i) {
      const int64_t begin = (first + i) * kGroupSteps - t.phase;
      if (in_rows_form) {
        copy_group(t, begin, x + i * kGroupSteps);
      } else {
        transpose_group(t, begin, x + i * kGroupSteps);
      }
    }
    add_tile_groups(t, {x, kCopiedRow, panel + first * kGroupSteps * t.panel_width, copied},
                    from_zero && first == 0);
  }
}

struct Kernel : AmxPairs {
  static constexpr int64_t kTileRows = kMostTileRows;
  static constexpr int64_t kForwardRows = kMostForwardRows;
  static constexpr int64_t kQueryTile = kMostQueryTile;
  static constexpr int64_t kKeyBlocks = 4;
  static constexpr int64_t kStepMultiple = kGroupSteps;

  static void add_groups(const ProductTile& t, bool from_zero) {
    add_groups_by_tiles(t, from_zero);
  }
  static void dot_lanes(const uint32_t* a, const uint32_t* b, int64_t steps, float* out) {
    dot_lanes_by_fma<AmxPairs>(a, b, steps, out);
  }
};

}  // namespace

const AttentionKernels kAttentionAmxTiles = attention_kernels<Kernel>();

}  // namespace strata::ops::cpu
