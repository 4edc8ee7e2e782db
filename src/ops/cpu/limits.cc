#include "ops/cpu/limits.h"

#include "backend/backend.h"
#include "base/check.h"

namespace strata::ops::cpu {

LimitLoop limit_loop(CpuPath path, bool bf16) {
#if defined(__x86_64__)
  switch (path) {
    case CpuPath::kAvx512Bf16:
      return bf16 ? limit_loop_avx512_bf16() : limit_loop_avx512();
    case CpuPath::kAvx512:
      return limit_loop_avx512();
    case CpuPath::kAvx2:
      return limit_loop_avx2();
    case CpuPath::kReference:
      break;
  }
#else
  CHECK(path == CpuPath::kReference && (bf16 || !bf16), path);
#endif
  return limit_loop_reference();
}

}  // namespace strata::ops::cpu
