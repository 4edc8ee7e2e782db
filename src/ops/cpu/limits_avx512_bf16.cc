// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/limits.h"

namespace strata::ops::cpu {
namespace {

constexpr int kChains = 24;

void run_multiply_adds(int64_t iterations) {
  __m512 acc[kChains];
  __m512i value = _mm512_set1_epi32(0x3f003f00);
#pragma GCC unroll 32
  for (__m512& chain : acc) {
    chain = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(chain));  // or the compiler keeps one of equal chains
  }
  for (int64_t i = 0; i < iterations; ++i) {
    __asm__ volatile("" : "+v"(value));
#pragma GCC unroll 32
    for (__m512& chain : acc) chain = _mm512_dpbf16_ps(chain, (__m512bh)value, (__m512bh)value);
  }
#pragma GCC unroll 32
  for (__m512& chain : acc) __asm__ volatile("" : : "v"(chain));
}

}  // namespace

LimitLoop limit_loop_avx512_bf16() { return {.run = run_multiply_adds, .flops = kChains * 32 * 2}; }

}  // namespace strata::ops::cpu
#endif
