#include "ops/cpu/delta_gates_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void delta_gates_columns<Scalar>(const DeltaGatesKernel&, float*, int64_t, float*, int64_t,
                                          int64_t, int64_t);
template void delta_gates_backward_columns<Scalar>(const DeltaGatesKernel&,
                                                   const DeltaGatesGradients&, int64_t, int64_t);

}  // namespace strata::ops::cpu
