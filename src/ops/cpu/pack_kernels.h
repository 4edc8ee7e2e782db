// SPDX-License-Identifier: Apache-2.0
// The inner kernels of packing. A step is 32 bits of a row of the panel matrix: a pair of bf16 or
// one f32. Raw pointers only, as in cpu/gemm_kernels.h.
#pragma once
#include <cstdint>

namespace strata::ops::cpu {

enum class PackType : uint8_t { kF32, kBF16, kF16 };

struct PackArgs {
  const void* rows = nullptr;  // [lanes, at least steps * elements of a step]
  int64_t stride = 0;          // elements
  PackType from = PackType::kF32;
  int64_t steps = 0;
  int64_t lanes = 0;
  void* dst = nullptr;  // [steps][width] of 32 bits, at the first lane; aligned to 64 bytes
  int64_t width = 0;
  bool to_bf16 = false;
  bool stream = false;  // write past the caches
};

constexpr int64_t kPackBlock = 16;

struct PackKernel {
  void (*run)(const PackArgs&) = nullptr;  // null: plain loops
  int64_t block = kPackBlock;              // steps and lanes come in multiples of it
};

// Steps and lanes are multiples of kPackBlock.
void pack_avx2(const PackArgs& args);
// Any number of steps and lanes; those of other rows stay as they are.
void pack_avx512(const PackArgs& args);

}  // namespace strata::ops::cpu
