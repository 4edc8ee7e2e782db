// SPDX-License-Identifier: Apache-2.0
// bf16 products of the path `amx` by tiles (cpu/tiles.h). Two tiles of rows by two of lanes share
// four tiles of sums: four loads for four products. Rows lie in tiles of 16 x 32 (pack_rows), since
// rows of a matrix are often a multiple of 4 KiB apart, which is one set of L1; a block of kBlock
// columns of 32 lanes stays in L1 while all rows pass over it. The bits are those of
// cpu/gemm_amx_avx512.cc, which does what tiles are too large for.
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/tiles.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kGroup = 2 * kGroupSteps;              // elements
constexpr int64_t kTileElements = kTileHeight * kGroup;  // of rows
constexpr int64_t kLanes = 16;                           // of a tile
constexpr int64_t kBlock = 512;                          // columns
constexpr int64_t kStripRows = 2 * kTileHeight;          // that are packed on the stack
constexpr int64_t kFewRows = 2;                          // up to which tiles are too large

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows of 32 columns become tiles; what is not there is zeros.
void pack_rows(const PackRowsArgs& a) {
  const auto* x = static_cast<const uint16_t*>(a.x);
  auto* strip = static_cast<uint16_t*>(a.dst);
  for (int64_t row = 0; row < a.rows; row += kTileHeight, strip += a.dst_stride) {
    for (int64_t r = 0; r < kTileHeight; ++r) {
      const uint16_t* from = x + (row + r) * a.x_stride;
      uint16_t* to = strip + r * kGroup;
      const int64_t cols = row + r < a.rows ? a.cols : 0;
      int64_t k = 0;
      for (; k + kGroup <= cols; k += kGroup, to += kTileElements) {
        _mm512_store_si512(to, _mm512_loadu_si512(from + k));
      }
      for (; k < a.cols; k += kGroup, to += kTileElements) {
        const __mmask32 mask = k < cols ? (1u << (cols - k)) - 1u : 0;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, from + k));
      }
    }
  }
}

// What is fetched to L2 while a block is multiplied: as many bytes behind it, a few lines with each
// group, since the hardware does not foresee tiles.
struct Ahead {
  const char* next = nullptr;
  int64_t lines = 0;  // with each group

  [[gnu::always_inline]] void fetch() {
    for (int64_t i = 0; i < lines; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T1);
  }
};

// A block of columns of a panel, whose last group may be a copy that is filled up with zeros.
struct PanelBlock {
  const char* data;
  int64_t pair_bytes;
  int64_t groups;          // whole ones
  const char* last_group;  // null: none
};

// Rows of one or two tiles in height, and their sums.
struct Rows {
  const uint16_t* x;
  int64_t stride;  // elements from one tile of rows to the next
  int64_t count;
  float* acc;
  int64_t acc_stride;
  bool from_zero;
};

// The sums of a tile of rows: where they lie, or in a copy where fewer than sixteen rows are there.
template <int kLaneTiles>
struct Sums {
  float* at;
  int64_t stride;
  float* home = nullptr;  // of a copy
  int64_t home_stride = 0;
  int64_t count = 0;

  [[gnu::always_inline]] Sums(const Rows& rows, int64_t row, int64_t lane, float* copy) {
    at = rows.acc + row * rows.acc_stride + lane;
    stride = rows.acc_stride;
    count = least(kTileHeight, rows.count - row);
    if (count == kTileHeight) return;
    home = at;
    home_stride = stride;
    at = copy;
    stride = kLaneTiles * kLanes;
    for (int64_t r = 0; r < count && !rows.from_zero; ++r) {
      copy_lanes(home + r * home_stride, at + r * stride);
    }
  }
  [[gnu::always_inline]] static void copy_lanes(const float* from, float* to) {
    for (int v = 0; v < kLaneTiles; ++v) {
      _mm512_storeu_ps(to + v * kLanes, _mm512_loadu_ps(from + v * kLanes));
    }
  }
  [[gnu::always_inline]] void give_back() const {
    for (int64_t r = 0; home != nullptr && r < count; ++r) {
      copy_lanes(at + r * stride, home + r * home_stride);
    }
  }
};

template <int kFirst, int kCount, typename S>
[[gnu::always_inline]] inline void load_sums(const S& sums, bool from_zero) {
  if constexpr (kCount > 0) {
    if (from_zero) {
      zero_tile<kFirst>();
    } else {
      load_tile<kFirst>(sums.at, sums.stride * 4);
    }
    if constexpr (kCount > 1) {
      if (from_zero) {
        zero_tile<kFirst + 1>();
      } else {
        load_tile<kFirst + 1>(sums.at + kLanes, sums.stride * 4);
      }
    }
    if constexpr (kCount > 2) {
      if (from_zero) {
        zero_tile<kFirst + 2>();
        zero_tile<kFirst + 3>();
      } else {
        load_tile<kFirst + 2>(sums.at + 2 * kLanes, sums.stride * 4);
        load_tile<kFirst + 3>(sums.at + 3 * kLanes, sums.stride * 4);
      }
    }
  }
}

template <int kFirst, int kCount, typename S>
[[gnu::always_inline]] inline void store_sums(const S& sums) {
  store_tile<kFirst>(sums.at, sums.stride * 4);
  if constexpr (kCount > 1) store_tile<kFirst + 1>(sums.at + kLanes, sums.stride * 4);
  if constexpr (kCount > 2) {
    store_tile<kFirst + 2>(sums.at + 2 * kLanes, sums.stride * 4);
    store_tile<kFirst + 3>(sums.at + 3 * kLanes, sums.stride * 4);
  }
}

// One group of one tile of rows and four of lanes (tiles 0 to 3 are their sums).
[[gnu::always_inline]] inline void add_group_1x4(const uint16_t* x, const char* panel,
                                                 int64_t pair_bytes) {
  load_tile<4>(x, 64);
  load_tile<5>(panel, pair_bytes);
  load_tile<6>(panel + 64, pair_bytes);
  multiply_tiles<0, 4, 5>();
  load_tile<7>(panel + 128, pair_bytes);
  multiply_tiles<1, 4, 6>();
  load_tile<5>(panel + 192, pair_bytes);
  multiply_tiles<2, 4, 7>();
  multiply_tiles<3, 4, 5>();
}

// One group of kRowTiles tiles of rows and kLaneTiles of lanes.
template <int kRowTiles, int kLaneTiles>
[[gnu::always_inline]] inline void add_group(const uint16_t* x, int64_t strip, const char* panel,
                                             int64_t pair_bytes) {
  load_tile<6>(panel, pair_bytes);
  load_tile<4>(x, 64);
  if constexpr (kRowTiles > 1) load_tile<5>(x + strip, 64);
  if constexpr (kLaneTiles > 1) load_tile<7>(panel + 64, pair_bytes);
  multiply_tiles<0, 4, 6>();
  if constexpr (kRowTiles > 1) multiply_tiles<kLaneTiles, 5, 6>();
  if constexpr (kLaneTiles > 1) multiply_tiles<1, 4, 7>();
  if constexpr (kRowTiles > 1 && kLaneTiles > 1) multiply_tiles<3, 5, 7>();
}

// At most 32 rows by kLaneTiles tiles of lanes, from lane `lane` on.
template <int kRowTiles, int kLaneTiles>
void multiply_block(const Rows& rows, const PanelBlock& panel, int64_t lane, Ahead& ahead) {
  alignas(64) float copies[kRowTiles][kTileHeight * kLaneTiles * kLanes];
  const Sums<kLaneTiles> first(rows, 0, lane, copies[0]);
  const Sums<kLaneTiles> second(rows, (kRowTiles - 1) * kTileHeight, lane, copies[kRowTiles - 1]);
  load_sums<0, kLaneTiles>(first, rows.from_zero);
  if constexpr (kRowTiles > 1) load_sums<kLaneTiles, kLaneTiles>(second, rows.from_zero);
  const uint16_t* x = rows.x;
  const char* w = panel.data + lane * 4;
  const auto add = [&](const char* group) __attribute__((always_inline)) {
    if constexpr (kLaneTiles == 4) {
      add_group_1x4(x, group, panel.pair_bytes);
    } else {
      add_group<kRowTiles, kLaneTiles>(x, rows.stride, group, panel.pair_bytes);
    }
    x += kTileElements;
  };
  Ahead fetched = ahead;
  for (int64_t g = 0; g < panel.groups; ++g, w += kGroupSteps * panel.pair_bytes) {
    fetched.fetch();
    add(w);
  }
  ahead = fetched;
  if (panel.last_group != nullptr) add(panel.last_group + lane * 4);
  store_sums<0, kLaneTiles>(first);
  first.give_back();
  if constexpr (kRowTiles > 1) {
    store_sums<kLaneTiles, kLaneTiles>(second);
    second.give_back();
  }
}

// All rows by the lanes of a panel.
void multiply_rows(const Rows& rows, const PanelBlock& panel, int64_t width, Ahead ahead) {
  if (width == 64 && rows.count <= kTileHeight) return multiply_block<1, 4>(rows, panel, 0, ahead);
  const int64_t lanes = least(width, 2 * kLanes);
  for (int64_t lane = 0; lane < width; lane += lanes) {
    for (int64_t row = 0; row < rows.count; row += kStripRows) {
      Rows part = rows;
      part.x += row / kTileHeight * rows.stride;
      part.acc += row * rows.acc_stride;
      part.count = least(kStripRows, rows.count - row);
      const bool one = part.count <= kTileHeight;
      if (lanes == kLanes) {
        one ? multiply_block<1, 1>(part, panel, lane, ahead)
            : multiply_block<2, 1>(part, panel, lane, ahead);
      } else {
        one ? multiply_block<1, 2>(part, panel, lane, ahead)
            : multiply_block<2, 2>(part, panel, lane, ahead);
      }
    }
  }
}

// Columns [k, k + cols) of the panel; `last` holds its last group where that is short.
PanelBlock block_of_panel(const TileArgs& a, int64_t k, int64_t cols, char* last) {
  const int64_t pair_bytes = a.width * 4;
  PanelBlock block{.data = static_cast<const char*>(a.panel) + k / 2 * pair_bytes,
                   .pair_bytes = pair_bytes,
                   .groups = cols / kGroup,
                   .last_group = nullptr};
  if (cols % kGroup == 0) return block;
  const int64_t bytes = (cols % kGroup + 1) / 2 * pair_bytes;
  const char* from = block.data + block.groups * kGroupSteps * pair_bytes;
  for (int64_t i = 0; i < kGroupSteps * pair_bytes; i += 64) {
    _mm512_store_si512(last + i, i < bytes ? _mm512_load_si512(from + i) : _mm512_setzero_si512());
  }
  block.last_group = last;
  return block;
}

// Fetches the memory behind a block as evenly as whole lines allow.
Ahead plan_ahead(const TileArgs& a, const PanelBlock& panel) {
  if (!a.reads_on || panel.groups == 0) return {};
  const int64_t group_lines = kGroupSteps * panel.pair_bytes / 64;
  const int64_t lanes = a.rows <= kTileHeight ? a.width : 2 * kLanes;
  const int64_t passes = (a.rows + kStripRows - 1) / kStripRows * ((a.width + lanes - 1) / lanes);
  return {panel.data + panel.groups * group_lines * 64, (group_lines + passes - 1) / passes};
}

// Rows as they lie are packed on the stack, a strip and a block of columns at a time.
void multiply_unpacked_rows(const TileArgs& a, int64_t k, int64_t cols, const PanelBlock& panel,
                            Ahead ahead) {
  alignas(64) uint16_t packed[kStripRows * kBlock];
  constexpr int64_t kStrip = kTileHeight * kBlock;
  for (int64_t row = 0; row < a.rows; row += kStripRows) {
    const int64_t count = least(kStripRows, a.rows - row);
    pack_rows({.x = static_cast<const uint16_t*>(a.x) + row * a.x_stride + k,
               .x_stride = a.x_stride,
               .rows = count,
               .cols = cols,
               .dst = packed,
               .dst_stride = kStrip});
    multiply_rows({.x = packed,
                   .stride = kStrip,
                   .count = count,
                   .acc = a.acc + row * a.acc_stride,
                   .acc_stride = a.acc_stride,
                   .from_zero = a.start_at_zero && k == 0},
                  panel, a.width, ahead);
  }
}

void accumulate(const TileArgs& a) {
  if (a.rows <= kFewRows) return gemm_kernels_amx_avx512().accumulate(a);
  configure_tiles();
  alignas(64) char last[kGroupSteps * kMaxWidth * 4];
  for (int64_t k = 0; k < a.cols; k += kBlock) {
    const int64_t cols = least(kBlock, a.cols - k);
    const PanelBlock panel = block_of_panel(a, k, cols, last);
    const Ahead ahead = plan_ahead(a, panel);
    if (!a.x_is_packed) {
      multiply_unpacked_rows(a, k, cols, panel, ahead);
      continue;
    }
    multiply_rows({.x = static_cast<const uint16_t*>(a.x) + a.offset_of(0, k),
                   .stride = a.x_stride,
                   .count = a.rows,
                   .acc = a.acc,
                   .acc_stride = a.acc_stride,
                   .from_zero = a.start_at_zero && k == 0},
                  panel, a.width, ahead);
  }
}

GemmKernels make_kernels() {
  GemmKernels kernels = gemm_kernels_amx_avx512();
  kernels.rows_16 = kStripRows;
  kernels.rows_32 = kStripRows;
  kernels.rows_64 = kStripRows;
  kernels.accumulate = accumulate;
  kernels.pack_rows = pack_rows;
  return kernels;
}

}  // namespace

const GemmKernels& gemm_kernels_amx_tiles() {
  static const GemmKernels kernels = make_kernels();
  return kernels;
}

}  // namespace strata::ops::cpu
#endif
