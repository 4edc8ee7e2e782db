// SPDX-License-Identifier: Apache-2.0
#include "ops/add_squares.h"

#include "ops/checks.h"
#include "ops/rows.h"

namespace strata::ops {

double add_squares(Backend& backend, TensorView x, double sum) {
  CHECK(is_float(x.dtype), x.dtype);
  return backend.call()->elementwise.add_squares(backend, x, sum);
}

}  // namespace strata::ops
