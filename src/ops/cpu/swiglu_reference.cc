#include "ops/cpu/simd_scalar.h"
#include "ops/cpu/swiglu_impl.h"

namespace strata::ops::cpu {

template void swiglu_piece<Scalar>(DType, const void*, const void*, float, void*, int64_t);
template void swiglu_backward_piece<Scalar>(DType, const void*, const void*, float, DType,
                                            const void*, void*, void*, int64_t);
template float swiglu_dot_piece<Scalar>(DType, const void*, const void*, DType, const void*,
                                        int64_t);

}  // namespace strata::ops::cpu
