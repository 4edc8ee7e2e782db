#include "ops/cpu/rms_norm_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void add_offset<Avx512>(const float*, float, float*, int64_t);
template void rms_norm_rows<Avx512>(const RmsNormKernel&, void*, DType, int64_t, float*, int64_t,
                                    int64_t);
template void inv_rms_rows<Avx512>(const RmsNormKernel&, float*, int64_t, int64_t);
template void rms_norm_backward_rows<Avx512>(const RmsNormKernel&, const float*, const float*,
                                             int64_t, float*, int64_t, int64_t, int64_t);
template void rms_norm_backward_columns<Avx512>(const RmsNormKernel&, const float*, const float*,
                                                int64_t, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
