#include "ops/cpu/delta_gates_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void delta_gates_columns<Avx2>(const DeltaGatesKernel&, float*, int64_t, float*, int64_t,
                                        int64_t, int64_t);
template void delta_gates_backward_columns<Avx2>(const DeltaGatesKernel&,
                                                 const DeltaGatesGradients&, int64_t, int64_t);

}  // namespace strata::ops::cpu
