// SPDX-License-Identifier: Apache-2.0
// An adapter as llama.cpp loads it with a model (general.type "adapter"): of each adapted tensor
// X its X.lora_a [r, in] and X.lora_b [out, r] in F32, in the file's order of rows; of experts
// [E, r, in] and [E, out, r]. llama.cpp multiplies by alpha / r with one alpha: what a module's own
// scale differs by is in its B. Engine thread only.
#pragma once
#include <string>

#include "backend/backend.h"
#include "model/weights/load.h"

namespace strata::model {

// `names` was loaded without memory (kNoLayers). Error{kUnsupported} for a module that llama.cpp
// has no tensor for. Returns how many tensors are adapted.
int64_t write_gguf_lora(Backend& backend, const LoadedModel& names, const std::string& adapter_dir,
                        const std::string& path);

}  // namespace strata::model
