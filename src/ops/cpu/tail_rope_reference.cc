#include "ops/cpu/simd_scalar.h"
#include "ops/cpu/tail_rope_impl.h"

namespace strata::ops::cpu {

template void tail_rope_rows<Scalar>(const TailRopeKernel&, DType, void*, int64_t, int64_t);
template void tail_rope_backward_rows<Scalar>(const TailRopeKernel&, DType, const void*, DType,
                                              void*, float*, int64_t, int64_t);
template void tail_rope_weight_columns<Scalar>(const TailRopeKernel&, DType, const void*,
                                               const float*, int64_t, float*, int64_t, int64_t);
template void tail_rope_inv_rms<Scalar>(const TailRopeKernel&, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
