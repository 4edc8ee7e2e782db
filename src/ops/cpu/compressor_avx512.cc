#include "ops/cpu/compressor_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void compress_block<Avx512>(const CompressorKernel&, float*, int64_t, int64_t);
template void compress_backward_block<Avx512>(const CompressorKernel&, const CompressorGradients&,
                                              int64_t, int64_t);

}  // namespace strata::ops::cpu
