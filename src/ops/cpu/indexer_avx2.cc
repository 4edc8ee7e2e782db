#include "ops/cpu/indexer_impl.h"
#include "ops/cpu/simd_avx2.h"

namespace strata::ops::cpu {

template void index_scores<Avx2>(const IndexerKernel&, const void*, int64_t, int64_t, float*);

}  // namespace strata::ops::cpu
