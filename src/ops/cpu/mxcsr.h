// SPDX-License-Identifier: Apache-2.0
// FlushDenormals: while it lives, the thread's SSE and AVX arithmetic takes denormal inputs for
// zero and gives zero for denormal results, as a matrix unit does. The compiler may move arithmetic
// across it, so that belongs in a function of its own, which is not inlined. Every file that
// includes this has its own copy.
#pragma once
#include <cstdint>

namespace strata::ops::cpu {
namespace {

class FlushDenormals {
 public:
  [[gnu::always_inline]] FlushDenormals() {
    constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
    __asm__ volatile("stmxcsr %0" : "=m"(saved_) : : "memory");
    set(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  [[gnu::always_inline]] ~FlushDenormals() { set(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  [[gnu::always_inline]] static void set(uint32_t value) {
    __asm__ volatile("ldmxcsr %0" : : "m"(value) : "memory");
  }

  uint32_t saved_;
};

}  // namespace
}  // namespace strata::ops::cpu
