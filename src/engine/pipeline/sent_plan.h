// SPDX-License-Identifier: Apache-2.0
// What each rank of a run will send, before it does. Engine thread only.
#pragma once
#include <span>
#include <vector>

#include "api/batch.h"
#include "engine/engine.h"
#include "engine/pipeline/plan.h"
#include "engine/pipeline/sent_bytes.h"

namespace strata::engine {

// What each rank sends, for a batch that wants no large results (Runner::run) and the optimizer
// steps of these slots behind it (Runner::step), all that the batch trains; nothing was accumulated
// before. `engine`: any stage's, which has the slots. Of sequences only the numbers of tokens and
// targets count. But for what ranks that have parts of a stage's weights send to each other for
// passes.
std::vector<SentBytes> plan_sends(const PipelinePlan& plan, Engine& engine, const api::Batch& batch,
                                  std::span<const api::AdapterSlot> stepped);

// How often the ranks of a stage wait for each other in the passes of a batch: for values, and for
// gradients of values.
struct StageWaits {
  int64_t activations = 0, activation_gradients = 0;
};

// Adds that to what all ranks send, of the ranks of a stage, which `engine` has: by running every
// pass of it on a backend that only counts.
StageWaits add_messages_within_stage(const PipelinePlan& plan, int stage, Engine& engine,
                                     const api::Batch& batch, std::vector<SentBytes>& all);

}  // namespace strata::engine
