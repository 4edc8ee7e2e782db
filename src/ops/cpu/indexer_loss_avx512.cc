#include "ops/cpu/indexer_loss_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void query_dots<Avx512>(const QueryHeads&, const void*, int64_t, float*);
template void add_multiple<Avx512>(DType, float, const void*, int64_t, float*);

}  // namespace strata::ops::cpu
