// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "ops/cpu/narrow_impl_avx512.h"

namespace strata::ops::cpu {
namespace {

// The rounding of to_bf16 (tensor/dtype.h) of numbers.
struct Nearest {
  static __m512i round(__m512 value) {
    const __m512i u = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  }
  // The upper halves, low's first.
  static __m512i both(__m512 low, __m512 high) {
    alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                        23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                        45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(round(low), _mm512_load_si512(kUpper), round(high));
  }
};

}  // namespace

void narrow_unpack_avx512(const NarrowArgs& args) { unpack<NarrowAvx512<Nearest>>(args); }

}  // namespace strata::ops::cpu
#endif
