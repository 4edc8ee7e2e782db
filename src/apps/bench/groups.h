// SPDX-License-Identifier: Apache-2.0
// What `strata bench` says of the grouped products of a layer's experts alone: gate, up and down,
// forward and input gradient, with the same number of tokens at every expert, as shares of the
// matrix peak probed around them. E experts, F expert width, D model width. Engine thread only.
#pragma once
#include "engine/engine.h"
#include "ops/limits.h"

namespace strata::apps {

struct GroupShares {
  int64_t tokens_per_expert = 0;
  double forward = 0.0;
  double input_gradient = 0.0;
};

// Times the first sparse layer; the median of `repeat` runs.
GroupShares measure_grouped_products(engine::Engine& engine, ops::LimitProbe& probe,
                                     int64_t tokens_per_expert, int repeat);

}  // namespace strata::apps
