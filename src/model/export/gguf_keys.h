// SPDX-License-Identifier: Apache-2.0
// A model's config as the keys of a GGUF file, by llama.cpp's names: the way back of
// checkpoint/gguf/config.cc, which must read the same config from them.
#pragma once
#include <string>

#include "checkpoint/gguf/architecture.h"
#include "checkpoint/gguf/gguf_header.h"
#include "model/config.h"

namespace strata::model {

// Error{kUnsupported} for a family that llama.cpp does not know, or that is not read here.
const GgufArchitecture& require_gguf_architecture(const ModelConfig& config);

void add_config_keys(const ModelConfig& config, GgufHeader& header);
// The tensor that stands for Llama 3's rotary scaling, or for pairs of a head that do not turn;
// empty where there is neither.
std::vector<float> rope_divisors(const ModelConfig& config);

// What llama.cpp's code for the architecture takes as given and this model has otherwise, by its
// name in config.json; empty where it can run the model.
std::string find_llama_cpp_fault(const ModelConfig& config);

// What two configs of one model differ in, by the name that it has in config.json; empty where they
// compute the same.
std::string config_difference(const ModelConfig& a, const ModelConfig& b);

}  // namespace strata::model
