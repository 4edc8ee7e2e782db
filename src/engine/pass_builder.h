// SPDX-License-Identifier: Apache-2.0
// PassBuilder: makes a model::Pass out of sequences: flat tokens, positions, row groups. Owns the
// arrays that the pass borrows and reuses them, so that a warm step allocates nothing. Engine
// thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/pass/pass.h"

namespace strata::engine {

class PassBuilder {
 public:
  void clear();
  // Appends a sequence's tokens from first_position on; nothing is kept in training.
  void add(std::span<const int32_t> tokens, int64_t first_position, model::LoraAdapter* adapter,
           model::SequenceCache kept = {});
  // Passes along with this one go up to so many positions.
  void reach(int64_t positions) { num_positions_ = std::max(num_positions_, positions); }
  // The pass borrows this builder until the next clear(). Makes the rope table long enough.
  model::Pass build(Backend& backend, const model::ModelWeights& weights, model::RopeTables& ropes,
                    const model::CacheLayout& cache);

  // A pass over other rows with all else of `pass`, whose lists it uses.
  model::Pass build_with(const model::Pass& pass);

  // Of a pass that was counted.
  [[nodiscard]] const std::vector<model::SavedCost>& saved_costs() const { return lists_.saved; }

  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<model::PassSequence> sequences_;
  model::RowGroups rows_;
  model::PassLists lists_;
  int64_t num_positions_ = 0;
};

}  // namespace strata::engine
