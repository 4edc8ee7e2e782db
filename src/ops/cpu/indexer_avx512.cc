#include "ops/cpu/indexer_impl.h"
#include "ops/cpu/simd_avx512.h"

namespace strata::ops::cpu {

template void index_scores<Avx512>(const IndexerKernel&, const void*, int64_t, int64_t, float*);

}  // namespace strata::ops::cpu
