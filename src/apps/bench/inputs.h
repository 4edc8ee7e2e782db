// SPDX-License-Identifier: Apache-2.0
// What the works of `strata bench` run on.
#pragma once
#include <cstdint>
#include <vector>

#include "model/weights/weights.h"

namespace strata::apps {

// Small random weights, cheap to make: a hash of the element's index, uniform in +-0.035 (deviation
// 0.02).
void fill_random(Backend& backend, model::ModelWeights& weights);

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t stream);

}  // namespace strata::apps
