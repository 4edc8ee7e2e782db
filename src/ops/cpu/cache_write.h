// SPDX-License-Identifier: Apache-2.0
// The CPU behind ops/cache_write.h: arguments are checked.
#pragma once
#include "ops/cache_write.h"

namespace strata {
class CpuBackend;
}

namespace strata::ops::cpu {

void cache_write(CpuBackend& backend, TensorView x, std::span<const CacheSegment> runs);

}  // namespace strata::ops::cpu
