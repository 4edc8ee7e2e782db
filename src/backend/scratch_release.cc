// SPDX-License-Identifier: Apache-2.0
#include "backend/scratch_release.h"

namespace strata {

void scratch_released(void* /*data*/, int64_t /*bytes*/) {}

}  // namespace strata
