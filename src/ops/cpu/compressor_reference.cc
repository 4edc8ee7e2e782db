#include "ops/cpu/compressor_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void compress_block<Scalar>(const CompressorKernel&, float*, int64_t, int64_t);
template void compress_backward_block<Scalar>(const CompressorKernel&, const CompressorGradients&,
                                              int64_t, int64_t);

}  // namespace strata::ops::cpu
