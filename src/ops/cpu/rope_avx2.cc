#include "ops/cpu/rope_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void head_norm_rope_rows<Avx2>(const RopeKernel&, void*, int64_t, int64_t, int64_t);
template void head_inv_rms_rows<Avx2>(const RopeKernel&, float*, int64_t, int64_t);
template void head_norm_rope_backward_rows<Avx2>(const RopeKernel&, const void*, DType, int64_t,
                                                 void*, DType, int64_t, int64_t, int64_t);
template void head_norm_rope_backward_columns<Avx2>(const RopeKernel&, const float*, const void*,
                                                    DType, int64_t, float*, int64_t, int64_t);
template void head_norm_backward_columns<Avx2>(const RopeKernel&, const float*, const void*, DType,
                                               int64_t, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
