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

}  // namespace strata::ops::cpu
