#include "ops/cpu/gated_norm_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void gated_norm_rows<Avx512>(const GatedNormKernel&, const HeadRows&, int64_t, int64_t);
template void gated_inv_rms_rows<Avx512>(const GatedNormKernel&, float*, int64_t, int64_t);
template void gated_norm_backward_rows<Avx512>(const GatedNormKernel&, const HeadRows&, DType,
                                               const HeadRows&, const HeadRows&, int64_t, int64_t);
template void gated_norm_backward_columns<Avx512>(const GatedNormKernel&, const float*,
                                                  const HeadRows&, DType, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
