// SPDX-License-Identifier: Apache-2.0
// Adapters of a model whose stages several ranks have: put together on rank 0, which reads and
// writes files, and given from there to all. Each rank has its modules of the adapter. All ranks
// make the same calls. Engine thread of its rank only.
#pragma once
#include <vector>

#include "backend/comm.h"
#include "engine/adapter_state.h"

namespace strata::engine {

// The whole of an adapter, on rank 0, with its moments if `moments`; elsewhere nothing.
AdapterCopy gather_adapter(Comm& comm, Engine& engine, const model::LoraAdapter& part,
                           bool moments);

// Rank 0's modules, on each rank.
void broadcast_specs(Comm& comm, std::vector<model::LoraModuleSpec>& specs);

// This rank's part of what rank 0 has as a whole, of an adapter with these modules, whose panels
// are not refreshed; with the moments and the step count if `moments`. `whole` matters on rank 0.
AdapterCopy scatter_adapter(Comm& comm, Engine& engine, const AdapterCopy& whole,
                            const std::vector<model::LoraModuleSpec>& specs, bool moments);

}  // namespace strata::engine
