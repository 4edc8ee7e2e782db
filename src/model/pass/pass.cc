// SPDX-License-Identifier: Apache-2.0
#include "model/pass/pass.h"

#include <algorithm>

#include "model/pass/recompute.h"

namespace strata::model {
namespace {

// The layers come in turn; the next one's input comes before the rest of a layer.
SavedCost& ensure_cost(std::vector<SavedCost>& costs, int64_t layer, ScratchTag tag) {
  for (auto cost = costs.rbegin(); cost != costs.rend() && cost->layer >= layer; ++cost) {
    if (cost->layer == layer && cost->tag == tag) return *cost;
  }
  costs.push_back({.layer = layer, .tag = tag});
  return costs.back();
}

// In a plan, and of a forward alone: what an activation takes and costs to recompute.
void count_cost(const Pass& pass, int64_t layer, ScratchTag tag, int64_t bytes, double flops) {
  pass.backend.if_counting([&] {
    if (pass.lists.saves.again) return;
    SavedCost& cost = ensure_cost(pass.lists.saved, layer, tag);
    cost.bytes += bytes;
    cost.flops += flops;
  });
}

}  // namespace

TensorView Pass::allocate_saved(ScratchTag tag, double flops, DType type,
                                const Shape& shape) const {
  LayerSaves& saves = lists.saves;
  const bool kept = saves.phase != SavePhase::kAll && saves.recompute->keeps(saves.layer, tag);
  if (kept && saves.phase == SavePhase::kTakeRest) return saves.kept[saves.next++];
  if (!kept && saves.phase == SavePhase::kTakeKept) return {};
  const bool in_files = kept && saves.recompute->offloads(saves.layer, tag);
  const TensorView view = allocate_saved(saves.layer, tag, flops, type, shape, in_files);
  if (kept) saves.kept.push_back(view);
  return view;
}

TensorView Pass::allocate_saved(int64_t layer, ScratchTag tag, double flops, DType type,
                                const Shape& shape, bool in_files) const {
  LayerSaves& saves = lists.saves;
  const TensorView view = in_files ? saves.offloaded.allocate(backend, layer, type, shape, tag)
                                   : backend.scratch().take(type, shape, tag);
  count_cost(*this, layer, tag, Arena::aligned(view.num_bytes()), flops);
  return view;
}

// A kept view is handed out again as it is: its address tells.
bool Pass::is_computed(TensorView activation) const {
  return !activation.empty() &&
         std::any_of(lists.saves.computed.begin(), lists.saves.computed.end(),
                     [&](const TensorView& kept) { return kept.data == activation.data; });
}

}  // namespace strata::model
