#include "ops/cpu/elementwise_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void copy_piece<Avx512>(DType, const void*, DType, void*, int64_t);
template void add_piece<Avx512>(DType, const void*, float*, int64_t);
template void scale_piece<Avx512>(DType, const void*, float, DType, void*, int64_t);
template void add_rows_columns<Avx512>(DType, const void*, int64_t, const int32_t*, int64_t, float*,
                                       int64_t, int64_t, int64_t);
template void gather_sum_row<Avx512>(DType, const void*, int64_t, const int32_t*, int64_t,
                                     const float*, DType, void*, int64_t);
template double sum_of_squares_piece<Avx512>(DType, const void*, int64_t);

}  // namespace strata::ops::cpu
