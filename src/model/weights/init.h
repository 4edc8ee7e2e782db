// SPDX-License-Identifier: Apache-2.0
// A model without a directory: random weights as Hugging Face initialises them (matrices normal
// with initializer_range, norms 1, biases 0), drawn by (seed, name, element); or a stage of it.
// Engine thread only.
#pragma once
#include <cstdint>
#include <optional>

#include "model/weights/load.h"

namespace strata::model {

LoadedModel init_model(Backend& backend, const ModelConfig& config, DType compute_dtype,
                       uint64_t seed, std::optional<LayerRange> part = {},
                       const WeightShare& share = {}, const TensorShare& tensor = {},
                       const ExpertShare& expert = {});

}  // namespace strata::model
