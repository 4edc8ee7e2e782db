// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a model, in the order of its numbers: what save_weights, save_weights_for_sampler
// and save_weights_external have in common. {path} is its name, {ttl_seconds, user_metadata} are
// kept with it. It counts against the tenant's quota and the disk from the moment it is asked for.
#pragma once
#include "server/store/checkpoints/registry.h"
#include "server/tinker/operations/numbered.h"

namespace strata::server {

// `type` is the operation's name, in the reply; `save` has what its kind of body says beyond.
Response save_checkpoint(Service& service, const NumberedCall& call, const char* type,
                         CheckpointKind kind, CheckpointSave save = {});

}  // namespace strata::server
