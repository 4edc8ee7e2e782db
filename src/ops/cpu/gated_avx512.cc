#include "ops/cpu/gated_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void gated_piece<Avx512>(const GatedInputs&, void*, int64_t);
template void gated_backward_piece<Avx512>(const GatedInputs&, DType, const void*, void*, void*,
                                           int64_t);
template float gated_dot_piece<Avx512>(const GatedInputs&, DType, const void*, int64_t);

}  // namespace strata::ops::cpu
