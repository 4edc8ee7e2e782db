#include "ops/cpu/simd_avx512.h"
#include "ops/cpu/swiglu_impl.h"

namespace strata::ops::cpu {

template void swiglu_piece<Avx512>(DType, const void*, const void*, float, void*, int64_t);
template void swiglu_backward_piece<Avx512>(DType, const void*, const void*, float, DType,
                                            const void*, void*, void*, int64_t);
template float swiglu_dot_piece<Avx512>(DType, const void*, const void*, DType, const void*,
                                        int64_t);

}  // namespace strata::ops::cpu
