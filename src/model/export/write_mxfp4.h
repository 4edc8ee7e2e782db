// SPDX-License-Identifier: Apache-2.0
// A source of gpt-oss' weights in the form that gpt-oss is published in: matrices of experts in
// MXFP4 ("X.gate_up_proj_blocks" [E, outputs, inputs / 32, 16] and "_scales" [E, outputs, inputs /
// 32], gate and up in alternating rows), all else in its own type. Codes and exponents are those of
// ggml's MXFP4. transformers loads such a directory where config.json has mxfp4_config(). Engine
// thread only.
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
std::string mxfp4_config();

// Writes and answers as write_checkpoint() does. Error{kUnsupported} for another family, and for
// experts whose rows are no whole blocks of 32.
std::optional<std::vector<TensorError>> write_mxfp4(Backend& backend,
                                                    const CheckpointSource& source,
                                                    const LoadedModel& names,
                                                    const std::string& dir);

}  // namespace strata::model
