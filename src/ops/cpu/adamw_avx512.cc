#include "ops/cpu/adamw_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void adamw_piece<Avx512>(const AdamWKernel&, const float*, float*, float*, float*,
                                  int64_t);

}  // namespace strata::ops::cpu
