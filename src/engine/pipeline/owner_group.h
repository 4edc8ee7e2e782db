// SPDX-License-Identifier: Apache-2.0
// OwnerGroup: ranks that have the same parameters of a stage, add to their gradients one behind the
// other, and own some rows each (train/ownership.h). Those that deal micro-batches out are one, for
// all that each of them has; where several copies of the experts are dealt to ranks, those that
// have the same experts are another, for these. Borrows the ranks. Any thread.
#pragma once
#include "engine/pipeline/counted_comm.h"
#include "model/weights/weights.h"
#include "train/optimizer.h"

namespace strata::engine {

struct OwnerGroup {
  CountedComm* ranks = nullptr;
  train::AddedBy adds = train::AddedBy::kDealing;
  // Which owner its first rank is, and how far from that the next one is.
  int first_owner = 0, stride = 1;

  [[nodiscard]] bool is_of_experts() const { return adds == train::AddedBy::kExpertCopies; }
  [[nodiscard]] int owner_of(int rank) const { return first_owner + rank * stride; }
};

// Whether ranks divide the experts that the parameter is one of.
[[nodiscard]] inline bool is_of_divided_experts(const model::ModelWeights& weights, size_t index) {
  return weights.table()[index].expert >= 0 && weights.expert_ranks() != nullptr;
}

}  // namespace strata::engine
