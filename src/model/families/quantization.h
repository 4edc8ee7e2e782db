// SPDX-License-Identifier: Apache-2.0
// What a model's files say of weights in few bits. What a tensor is follows from those next to it
// (checkpoint/block_scales.h, checkpoint/nvfp4.h), whatever targets and exceptions are listed: here
// methods, and groups of matrices, whose weights no reader knows are refused by name.
#pragma once
#include <string>

#include "model/families/config_object.h"

namespace strata::model {

// Checks the quantization_config of config.json, where it has one.
void check_quantization(const ConfigObject& object);
// Checks hf_quant_config.json, which ModelOpt writes next to it.
void check_modelopt_file(const std::string& text, const std::string& where);

}  // namespace strata::model
