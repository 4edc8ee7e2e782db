// SPDX-License-Identifier: Apache-2.0
// The options of `strata train` as a table, bound to them.
#pragma once
#include "base/option_table.h"
#include "trainer/train.h"

namespace strata::apps {

OptionTable option_table_of(TrainOptions& o);

}  // namespace strata::apps
