// SPDX-License-Identifier: Apache-2.0
// The CPU's functions for each op.
#pragma once

namespace strata::ops {
struct Rows;
}

namespace strata::ops::cpu {

extern const Rows kRows;

}  // namespace strata::ops::cpu
