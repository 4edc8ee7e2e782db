// SPDX-License-Identifier: Apache-2.0
// The sum of squares (ops/elementwise.h) of a tensor whose first rows are elsewhere.
#pragma once
#include "backend/backend.h"
#include "tensor/view.h"

namespace strata::ops {

// `sum` is that of the rows before these: with theirs added, rows ascending.
double add_squares(Backend& backend, TensorView x, double sum);

}  // namespace strata::ops
