// SPDX-License-Identifier: Apache-2.0
// The table of a path's kernels of the gated delta rule, over what delta_net_forward_impl.h says of
// the path.
#pragma once
#include "ops/cpu/delta_net_backward_impl.h"
#include "ops/cpu/delta_net_forward_impl.h"

namespace strata::ops::cpu {

template <typename K>
constexpr DeltaKernels delta_kernels() {
  return {.multiply = delta_multiply<K>,
          .normalise = delta_normalise<K>,
          .transpose_keys = delta_transpose_keys<K>,
          .compute_decays_and_coefficients = delta_compute_decays_and_coefficients<K>,
          .solve = delta_solve<K>,
          .exponentiate = delta_exponentiate<K>,
          .load_rows = delta_load_rows<K>,
          .store_rows = delta_store_rows<K>,
          .scale_rows = delta_scale_rows<K>,
          .dot_rows = delta_dot_rows<K>,
          .transpose = delta_transpose<K>,
          .add_into = delta_add_into<K>,
          .solve_back = delta_solve_back<K>,
          .decay_backward = delta_decay_backward<K>,
          .norm_backward = delta_norm_backward<K>};
}

}  // namespace strata::ops::cpu
