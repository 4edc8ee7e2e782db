// SPDX-License-Identifier: Apache-2.0
// POST load_weights: {path, optimizer}: the weights of a checkpoint. With {model_id, seq_id} into
// that model, in its order; with {session_id, model_seq_id, ...} as create_model has them into a
// new one.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kLoadWeights;

}  // namespace strata::server
