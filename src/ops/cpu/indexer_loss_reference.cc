#include "ops/cpu/indexer_loss_impl.h"
#include "ops/cpu/simd_scalar.h"

namespace strata::ops::cpu {

template void query_dots<Scalar>(const QueryHeads&, const void*, int64_t, float*);
template void add_multiple<Scalar>(DType, float, const void*, int64_t, float*);

}  // namespace strata::ops::cpu
