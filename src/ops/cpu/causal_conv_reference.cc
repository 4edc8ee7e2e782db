#include "ops/cpu/causal_conv_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void causal_conv_silu_block<Scalar>(const CausalConvKernel&, void*, int64_t, int64_t,
                                             int64_t);
template void causal_conv_silu_backward_block<Scalar>(const CausalConvKernel&,
                                                      const CausalConvGradients&, int64_t, int64_t);

}  // namespace strata::ops::cpu
