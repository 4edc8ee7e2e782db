#include "ops/cpu/hyper_connection_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void hyper_mix_tokens<Scalar>(const HyperKernel&, float, float*, float*, int64_t, int64_t);
template void hyper_mix_backward_tokens<Scalar>(const HyperKernel&, const HyperMixGradients&,
                                                float*, int64_t, int64_t);
template void hyper_fn_backward_columns<Scalar>(const HyperKernel&, const HyperMixGradients&,
                                                int64_t, float*, int64_t, int64_t);
template void hyper_collapse_tokens<Scalar>(const HyperKernel&, float*, int64_t, int64_t);
template void hyper_collapse_backward_tokens<Scalar>(const HyperKernel&, const float*, float*,
                                                     float*, int64_t, int64_t);
template void hyper_expand_tokens<Scalar>(const HyperKernel&, DType, const void*, DType, void*,
                                          int64_t, int64_t);
template void hyper_expand_backward_tokens<Scalar>(const HyperKernel&, DType, const void*, float*,
                                                   float*, float*, int64_t, int64_t);

}  // namespace strata::ops::cpu
