#include "ops/cpu/gated_norm_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void gated_norm_rows<Scalar>(const GatedNormKernel&, const HeadRows&, int64_t, int64_t);
template void gated_inv_rms_rows<Scalar>(const GatedNormKernel&, float*, int64_t, int64_t);
template void gated_norm_backward_rows<Scalar>(const GatedNormKernel&, const HeadRows&, DType,
                                               const HeadRows&, const HeadRows&, int64_t, int64_t);
template void gated_norm_backward_columns<Scalar>(const GatedNormKernel&, const float*,
                                                  const HeadRows&, DType, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
