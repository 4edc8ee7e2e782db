// SPDX-License-Identifier: Apache-2.0
// POST optim_step: {model_id, seq_id, adam_params}: a step with the gradients so far, which are
// then 0.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kOptimStep;

}  // namespace strata::server
