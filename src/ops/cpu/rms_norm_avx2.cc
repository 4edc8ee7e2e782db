#include "ops/cpu/rms_norm_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void add_offset<Avx2>(const float*, float, float*, int64_t);
template void rms_norm_rows<Avx2>(const RmsNormKernel&, void*, DType, int64_t, float*, int64_t,
                                  int64_t);
template void inv_rms_rows<Avx2>(const RmsNormKernel&, float*, int64_t, int64_t);
template void rms_norm_backward_rows<Avx2>(const RmsNormKernel&, const float*, const float*,
                                           int64_t, float*, int64_t, int64_t, int64_t);
template void rms_norm_backward_columns<Avx2>(const RmsNormKernel&, const float*, const float*,
                                              int64_t, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
