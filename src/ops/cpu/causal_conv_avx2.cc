#include "ops/cpu/causal_conv_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void causal_conv_silu_block<Avx2>(const CausalConvKernel&, void*, int64_t, int64_t,
                                           int64_t);
template void causal_conv_silu_backward_block<Avx2>(const CausalConvKernel&,
                                                    const CausalConvGradients&, int64_t, int64_t);

}  // namespace strata::ops::cpu
