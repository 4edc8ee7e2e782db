// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "ops/cpu/narrow_impl_avx512.h"

namespace strata::ops::cpu {
namespace {

struct Instruction {
  static __m512i both(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
};

}  // namespace

void narrow_unpack_avx512_bf16(const NarrowArgs& args) { unpack<NarrowAvx512<Instruction>>(args); }

}  // namespace strata::ops::cpu
#endif
