#include "ops/cpu/log_softmax_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void max_and_sum_exp<Avx512>(const float*, int64_t, float*, float*);
template void log_softmax_backward_row<Avx512>(const float*, int64_t, const float*, int64_t, float,
                                               void*, DType);

}  // namespace strata::ops::cpu
