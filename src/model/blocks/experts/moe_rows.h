// SPDX-License-Identifier: Apache-2.0
// The config and the parameters of a mixture of experts: its router, its experts and what is with
// them.
#pragma once
#include <string>

#include "model/blocks/experts/moe.h"
#include "model/weights/param_rows.h"

namespace strata::model {

// What is wrong with a config, as a sentence; empty: nothing.
std::string find_moe_config_fault(const MoeConfig& c);
// Appends them, of a model of width d.
void add_moe_rows(const MoeConfig& config, int64_t d, ParamRows& rows);

}  // namespace strata::model
