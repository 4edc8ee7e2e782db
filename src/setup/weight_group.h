// SPDX-License-Identifier: Apache-2.0
// WeightGroup: data ranks of one machine, or of one NUMA node where each is bound to one, which
// have the same stages, and of frozen weights one copy: the first of them reads and packs it, and
// the others use its memory (backend/shared_memory.h). Ranks that cannot read each other's memory
// have a copy each.
#pragma once
#include <memory>
#include <vector>

#include "backend/comm.h"
#include "backend/shared_memory.h"
#include "setup/stages.h"

namespace strata::apps {

// How ranks that have the same weights lie among all: so many, each `stride`-th.
struct AlikeRanks {
  int count = 1;
  int stride = 1;
};

class WeightGroup {
 public:
  // Collective. One that shares nothing asks nobody. `tell`: why a rank has a copy of its own.
  WeightGroup(Comm& ranks, const AlikeRanks& alike, bool shares, Warnings tell = Warnings::kTold);

  // Ranks that have this one's copy.
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  // The size of the smallest of all groups of these ranks.
  [[nodiscard]] int least_size() const { return least_size_; }

  // Around the loading of each stage: memory to load it into, which is filled where another rank
  // has done that; null for a rank that is alone.
  std::unique_ptr<SharedMemory> begin_loading();
  // Behind it the first one tells the others. `memory` is what begin_loading() gave.
  void publish_after_loading(SharedMemory* memory);

 private:
  Comm& ranks_;
  std::vector<int> members_;  // ascending
  int least_size_ = 1;
};

// Notes in `stages` how many data ranks will share weights that do not train, where --shard-weights
// does not divide them. Collective.
void choose_weight_sharers(Comm& ranks, StageOptions& stages);

}  // namespace strata::apps
