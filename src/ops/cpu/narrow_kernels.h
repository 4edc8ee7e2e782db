// SPDX-License-Identifier: Apache-2.0
// The inner kernels of weights in few bits (tensor/narrow.h): groups of 32 columns of a panel
// become those of its bf16 copy, to the bit; the avx512_bf16 path alone has zeros for what bf16
// holds as subnormals, as its products do. Raw pointers only, as in cpu/gemm_kernels.h.
#pragma once
#include <cstdint>

#include "ops/cpu/gemm_kernels.h"
#include "tensor/narrow.h"

namespace strata::ops::cpu {

struct NarrowArgs {
  const uint8_t* panel = nullptr;
  int64_t width = 0;  // 16, 32 or 64
  int64_t first = 0;  // groups
  int64_t count = 0;
  NarrowScale scale = NarrowScale::kHalf;
  NarrowCodes codes = NarrowCodes::kNibbles;
  bool has_min = false;
  const float* values = nullptr;  // [16], aligned to 64 bytes; null: codes of 8 bits
  int64_t header_bytes = 0;       // of a group, its fields
  int64_t group_bytes = 0;
  int64_t super_fields = 0;
  int64_t super_bytes = 0;  // the super fields of eight groups
  void* dst = nullptr;      // bf16 [16 count][width][2], aligned to 64 bytes
};

using NarrowUnpack = void (*)(const NarrowArgs&);

// Continues the chains of a tile (its panel and cols are those of the groups, its width is 64) of
// at most kNarrowTileRows rows, without a bf16 copy in memory: to the bits of a product with that.
using NarrowAccumulate = void (*)(const NarrowArgs&, const TileArgs&);
constexpr int64_t kNarrowTileRows = 4;

void narrow_accumulate_avx512_bf16(const NarrowArgs& args, const TileArgs& tile);

void narrow_unpack_reference(const NarrowArgs& args);
void narrow_unpack_avx2(const NarrowArgs& args);
void narrow_unpack_avx512(const NarrowArgs& args);
void narrow_unpack_avx512_bf16(const NarrowArgs& args);

}  // namespace strata::ops::cpu
