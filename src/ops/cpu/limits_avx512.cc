// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/limits.h"

namespace strata::ops::cpu {
namespace {

constexpr int kChains = 24;

void run_multiply_adds(int64_t iterations) {
  __m512 acc[kChains];
  __m512 value = _mm512_set1_ps(0.5f);
#pragma GCC unroll 32
  for (__m512& chain : acc) {
    chain = _mm512_setzero_ps();
    __asm__ volatile("" : "+v"(chain));  // or the compiler keeps one of equal chains
  }
  for (int64_t i = 0; i < iterations; ++i) {
    __asm__ volatile("" : "+v"(value));
#pragma GCC unroll 32
    for (__m512& chain : acc) chain = _mm512_fmadd_ps(chain, value, value);
  }
#pragma GCC unroll 32
  for (__m512& chain : acc) __asm__ volatile("" : : "v"(chain));
}

}  // namespace

LimitLoop limit_loop_avx512() { return {.run = run_multiply_adds, .flops = kChains * 16 * 2}; }

}  // namespace strata::ops::cpu
#endif
