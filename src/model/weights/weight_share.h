// SPDX-License-Identifier: Apache-2.0
// WeightShare: which parts of a model's memory one of several ranks keeps. What all of them have
// alike they divide; where they divide the experts, those that have the same ones divide these.
// Plain values. Any thread.
#pragma once
#include "backend/memory_share.h"

namespace strata::model {

struct WeightShare {
  MemoryShare all = {};
  MemoryShare experts = {};  // of the experts that expert ranks divide; other ones are as all else
  [[nodiscard]] bool is_divided() const { return all.is_divided(); }
};

}  // namespace strata::model
