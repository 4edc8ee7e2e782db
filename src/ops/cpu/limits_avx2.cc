// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/cpu/limits.h"

namespace strata::ops::cpu {
namespace {

constexpr int kChains = 12;

void run_multiply_adds(int64_t iterations) {
  __m256 acc[kChains];
  __m256 value = _mm256_set1_ps(0.5f);
#pragma GCC unroll 32
  for (__m256& chain : acc) {
    chain = _mm256_setzero_ps();
    __asm__ volatile("" : "+x"(chain));  // or the compiler keeps one of equal chains
  }
  for (int64_t i = 0; i < iterations; ++i) {
    __asm__ volatile("" : "+x"(value));
#pragma GCC unroll 32
    for (__m256& chain : acc) chain = _mm256_fmadd_ps(chain, value, value);
  }
#pragma GCC unroll 32
  for (__m256& chain : acc) __asm__ volatile("" : : "x"(chain));
}

}  // namespace

LimitLoop limit_loop_avx2() { return {.run = run_multiply_adds, .flops = kChains * 8 * 2}; }

}  // namespace strata::ops::cpu
#endif
