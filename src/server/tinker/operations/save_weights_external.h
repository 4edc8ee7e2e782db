// SPDX-License-Identifier: Apache-2.0
// POST save_weights_external: a checkpoint (save_checkpoint.h) in PEFT's form to take away,
// encrypted with age for {age_encryption_recipients} where they are given.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kSaveWeightsExternal;

}  // namespace strata::server
