// SPDX-License-Identifier: Apache-2.0
// A source of weights as bitsandbytes has them in 4 bits (nf4, blocks of 64, absmax in F32): the
// projections of layers; all else in its own type. transformers loads such a directory where
// config.json has nf4_config(). Engine thread only.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/source.h"
#include "model/export/encode.h"
#include "model/weights/load.h"

namespace strata::model {

// The value of `quantization_config`.
std::string nf4_config();

// As write_checkpoint(). Error{kUnsupported} for a model with experts, which are no linear layers
// in transformers.
std::optional<std::vector<TensorError>> write_nf4(Backend& backend, const CheckpointSource& source,
                                                  const LoadedModel& names, const std::string& dir);

}  // namespace strata::model
