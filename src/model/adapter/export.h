// SPDX-License-Identifier: Apache-2.0
// Adapters as the Tinker service exports them, for tinker_cookbook.weights. Engine thread only.
#pragma once
#include <map>
#include <string>

#include "model/adapter/lora.h"

namespace strata::model {

// Writes a PEFT directory, F32, whose routed experts are stacked: "...mlp.experts.w1.lora_A.weight"
// [E, R, in] and lora_B [E, out, R], w1 gate, w2 down, w3 up. Its readers take lora_alpha / r for
// every module, so B of the experts is multiplied by what their own scale differs by; patterns say
// the same to readers that heed them. Without routed experts this is save_adapter().
void save_adapter_for_tinker(const LoraAdapter& adapter, const std::string& dir,
                             const std::string& base_model_name,
                             std::map<std::string, std::string> metadata = {});

}  // namespace strata::model
