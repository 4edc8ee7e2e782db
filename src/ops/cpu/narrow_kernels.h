// SPDX-License-Identifier: Apache-2.0
// The inner kernels of weights in few bits (tensor/narrow.h): groups of 32 columns of a panel
// become those of its bf16 copy, to the bit; the avx512_bf16 path alone has zeros for what bf16
// holds as subnormals, as its products do. Raw pointers only, as in cpu/gemm_kernels.h.
#pragma once
#include <cstdint>

#include "ops/cpu/gemm_kernels.h"
#include "tensor/narrow.h"

namespace strata::ops::cpu {

// Where the 4 bits of an element of [pair][width][2] are in a group's codes. In panels of 64 rows
// word d of 16 little-endian ones of 32 bits has elements d, 16 + d, ..., 112 + d from its low bits
// on; in narrower ones byte i of 32 has elements i and 32 + i: what registers of 512 and of 256
// bits take apart.
struct NarrowNibble {
  int64_t byte;
  int shift;
};
inline NarrowNibble narrow_nibble(int64_t element, int64_t width) {
  if (width >= 64) {
    const int64_t nibble = element % 128 / 16;
    return {element / 128 * 64 + element % 16 * 4 + nibble / 2, static_cast<int>(nibble % 2 * 4)};
  }
  return {element / 64 * 32 + element % 32, static_cast<int>(element % 64 / 32 * 4)};
}

// The same of codes in two planes.
struct NarrowPlanes {
  NarrowNibble low, high;
};
inline NarrowPlanes narrow_planes(int64_t element, int64_t width, int high_bits) {
  const int64_t elements = kNarrowGroup * width;
  const int64_t high_bytes = elements * high_bits / 8;
  const int64_t half = elements / 2;
  return {{element % half, static_cast<int>(element / half * 4)},
          {half + element % high_bytes, static_cast<int>(element / high_bytes * high_bits)}};
}

// What rounding a form's values to bf16 asks for.
enum class NarrowRounding : uint8_t {
  kNone,   // they are bf16 values
  kUsual,  // of 0 or from 2^-126 on and below 2^111
};

struct NarrowArgs {
  const uint8_t* panel = nullptr;
  int64_t width = 0;  // 64 of the paths of AVX-512, 16 of AVX2; of the reference any
  int64_t first = 0;  // groups
  int64_t count = 0;
  NarrowScale scale = NarrowScale::kHalf;
  NarrowCodes codes = NarrowCodes::kNibbles;
  bool has_min = false;
  NarrowRounding rounding = NarrowRounding::kUsual;
  const float* values = nullptr;  // [16], aligned to 64 bytes; null: codes of more than 4 bits
  int high_bits = 0;              // of codes in two planes, in the second one
  int least_code = 0;             // of those
  bool are_bf16 = false;          // the values
  int64_t header_bytes = 0;       // of a group, its fields
  int64_t group_bytes = 0;
  int64_t super_fields = 0;
  int64_t super_bytes = 0;  // the super fields of eight groups
  void* dst = nullptr;      // bf16 [16 count][width][2], aligned to 64 bytes
};

using NarrowUnpack = void (*)(const NarrowArgs&);

// Continues the chains of a tile (its panel, cols and width are those of the groups) of at most
// kNarrowTileRows rows, without a bf16 copy in memory: to the bits of a product with that.
using NarrowAccumulate = void (*)(const NarrowArgs&, const TileArgs&);
constexpr int64_t kNarrowTileRows = 4;

void narrow_accumulate_avx2(const NarrowArgs& args, const TileArgs& tile);
void narrow_accumulate_avx512(const NarrowArgs& args, const TileArgs& tile);
void narrow_accumulate_avx512_bf16(const NarrowArgs& args, const TileArgs& tile);

void narrow_unpack_reference(const NarrowArgs& args);
void narrow_unpack_avx2(const NarrowArgs& args);
void narrow_unpack_avx512(const NarrowArgs& args);
void narrow_unpack_avx512_bf16(const NarrowArgs& args);

}  // namespace strata::ops::cpu
