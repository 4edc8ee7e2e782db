// SPDX-License-Identifier: Apache-2.0
// POST save_weights_for_sampler: weights to sample from: a checkpoint (save_checkpoint.h), or with
// {sampling_session_seq_id} a sampling session of that number whose weights are not saved.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kSaveWeightsForSampler;

}  // namespace strata::server
