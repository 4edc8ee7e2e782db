#include "model/pass.h"

#include <algorithm>

namespace strata::model {

TensorView Pass::save(ScratchTag tag, double flops, DType type, const Shape& shape) const {
  const TensorView view = backend.scratch().take(type, shape, tag);
  if (!backend.is_counting()) return view;
  auto cost = std::find_if(lists.saved.begin(), lists.saved.end(),
                           [&](const SavedCost& c) { return c.tag == tag; });
  if (cost == lists.saved.end()) cost = lists.saved.insert(cost, {.tag = tag});
  cost->bytes += Arena::aligned(view.num_bytes());
  cost->flops += flops;
  return view;
}

}  // namespace strata::model
