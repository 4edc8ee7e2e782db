// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/limits.h"

namespace strata::ops::cpu {
namespace {

constexpr int kChains = 32;

// Independent multiply-adds that the compiler may put into whatever vectors the baseline has. The
// chains start from values it does not know, or it would keep one of them.
void run_multiply_adds(int64_t iterations) {
  volatile float start = 0.5f;
  const float value = start;
  float acc[kChains];
  for (float& chain : acc) chain = start;
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
    for (float& chain : acc) chain = chain * value + value;
  }
  for (const float chain : acc) start = chain;
}

}  // namespace

LimitLoop limit_loop_reference() { return {.run = run_multiply_adds, .flops = kChains * 2}; }

// Sixteen-byte loads saturate memory: wider ones read no faster, and prefetching by hand is slower
// than what the hardware foresees.
uint64_t xor_all_words(const void* data, int64_t bytes) {
  typedef uint64_t Vector __attribute__((vector_size(16)));
  constexpr int kVectors = 32;
  Vector sum[8] = {};
  const char* at = static_cast<const char*>(data);
  for (int64_t block = 0; block < bytes; block += kVectors * 16, at += kVectors * 16) {
#pragma GCC unroll 32
    for (int v = 0; v < kVectors; ++v) {
      sum[v % 8] ^= *reinterpret_cast<const Vector*>(at + v * 16);
    }
  }
  Vector all = {};
  for (const Vector part : sum) all ^= part;
  return all[0] ^ all[1];
}

}  // namespace strata::ops::cpu
