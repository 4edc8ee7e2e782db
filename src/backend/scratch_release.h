// SPDX-License-Identifier: Apache-2.0
// Where the backend hears that scratch is given back: work that was asked for before may still read
// it, work asked for from now on must not. Nothing is done here. Defined in a file of its own, in
// whose place a test program links one that fills the memory with NaN (tests/deferred).
#pragma once
#include <cstdint>

namespace strata {

void scratch_released(void* data, int64_t bytes);

}  // namespace strata
