#include "ops/cpu/indexer_loss_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void query_dots<Avx2>(const QueryHeads&, const void*, int64_t, float*);
template void add_multiple<Avx2>(DType, float, const void*, int64_t, float*);

}  // namespace strata::ops::cpu
