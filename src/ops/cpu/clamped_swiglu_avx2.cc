#include "ops/cpu/clamped_swiglu_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void clamped_swiglu_row<Avx2>(const ClampedInputs&, void*, int64_t);
template float clamped_swiglu_backward_row<Avx2>(const ClampedInputs&, DType, const void*, void*,
                                                 void*, int64_t);

}  // namespace strata::ops::cpu
