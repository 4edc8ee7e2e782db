// SPDX-License-Identifier: Apache-2.0
// What serve --merged merges checkpoints with: one at a time, on one thread that yields to others.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/adapter/specs.h"
#include "server/store/checkpoints/model_merger.h"

namespace strata::apps {

struct Merging {
  server::ModelMerger merger;
  int64_t bytes = 0;  // of memory while it runs, at most
};

// For models in these directories, and adapters of at most this rank. A signal that
// StopSignals::asked() tells of ends what runs.
Merging make_merging(const std::vector<std::string>& directories, int64_t max_rank,
                     model::ExpertRank expert_rank);

}  // namespace strata::apps
