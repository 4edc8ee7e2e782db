// SPDX-License-Identifier: Apache-2.0
// Whether ranks can divide a model, by what its rows of parameters say (param_rows.h). Pure: reads
// no file and takes no memory of weights.
#pragma once
#include <cstdint>

#include "model/weights/layer_table.h"

namespace strata::model {

// Numbers of ranks. Expert ranks have whole experts, as many each; tensor ranks have whole units of
// every row that has an axis, also of blocks that each has whole yet.
struct RankDivision {
  int64_t expert = 1;
  int64_t tensor = 1;
};

// Error{kInvalidArgument} for the first row that does not divide so, with its layer, axis and
// number of units, and with what every row divides by.
void check_division(const LayerTable& layers, const RankDivision& ranks);

// What passes of a tensor rank run: blocks have its units, all else is the whole model's. The same
// config where nothing is divided.
ModelConfig config_of_share(const ModelConfig& config, const TensorShare& share);

}  // namespace strata::model
