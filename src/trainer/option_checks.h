// SPDX-License-Identifier: Apache-2.0
// Which options of `strata train` go together. Pure.
#pragma once
#include "trainer/train.h"

namespace strata::apps {

// Throws Error, with what to leave out or give instead, where some do not.
void check_option_combinations(const TrainOptions& options);

}  // namespace strata::apps
