// SPDX-License-Identifier: Apache-2.0
// The parameters of a mixture of experts: its router, its experts and what is with them.
#pragma once
#include "model/blocks/experts/moe.h"
#include "model/weights/param_rows.h"

namespace strata::model {

// Appends them, of a model of width d.
void add_moe_rows(const MoeConfig& config, int64_t d, ParamRows& rows);

}  // namespace strata::model
