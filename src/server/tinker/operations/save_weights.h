// SPDX-License-Identifier: Apache-2.0
// POST save_weights: a checkpoint (save_checkpoint.h) to train on from: weights and moments, and
// with {overwrite} in place of one of its name.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kSaveWeights;

}  // namespace strata::server
