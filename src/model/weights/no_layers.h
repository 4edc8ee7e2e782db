// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "model/weights/layer_table.h"

namespace strata::model {

// As the part of a model: no layer, and nothing outside them. Names and shapes of all parameters,
// without memory.
constexpr LayerRange kNoLayers = {.first = -1, .last = -1};

}  // namespace strata::model
