// SPDX-License-Identifier: Apache-2.0
// POST save_weights: a checkpoint (save_checkpoint.h) to train on from: weights and moments, and
// with {overwrite} in place of one of its name.
#include "server/tinker/operations/operations.h"
#include "server/tinker/operations/save_checkpoint.h"

namespace strata::server {
namespace {

Response save_weights(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "save_weights");
  return handle_numbered_call(service, request, json.root(), [&](const NumberedCall& call) {
    CheckpointSave save;
    save.overwrite = call.body.boolean_or("overwrite", false);
    return save_checkpoint(service, call, "save_weights", CheckpointKind::kWeights, save);
  });
}

}  // namespace

constinit const Operation kSaveWeights = {.path = "save_weights", .run = save_weights};

}  // namespace strata::server
