#include "ops/cpu/rms_norm_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void add_offset<Scalar>(const float*, float, float*, int64_t);
template void rms_norm_rows<Scalar>(const RmsNormKernel&, void*, DType, int64_t, float*, int64_t,
                                    int64_t);
template void inv_rms_rows<Scalar>(const RmsNormKernel&, float*, int64_t, int64_t);
template void rms_norm_backward_rows<Scalar>(const RmsNormKernel&, const float*, const float*,
                                             int64_t, float*, int64_t, int64_t, int64_t);
template void rms_norm_backward_columns<Scalar>(const RmsNormKernel&, const float*, const float*,
                                                int64_t, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
