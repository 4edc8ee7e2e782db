// SPDX-License-Identifier: Apache-2.0
// A base that is quantised to nf4 as it is loaded (QLoRA): the linear layers of the decoder's
// layers, which are those that transformers' BitsAndBytesConfig quantises: neither embedding nor
// head, and nothing that is no matrix.
#pragma once
#include <memory>
#include <string>

#include "backend/backend.h"
#include "checkpoint/source.h"
#include "model/weights/weights.h"

namespace strata::model {

// Whether bitsandbytes has the parameter in 4 bits.
[[nodiscard]] bool is_linear_of_layer(const Parameter& parameter);

// The source with these in nf4 (checkpoint/nf4_source.h). Error{kUnsupported} for a model with
// experts, which are no linear layers in transformers, and for files that are in few bits already.
std::unique_ptr<CheckpointSource> quantise_in_4bit(std::unique_ptr<CheckpointSource> source,
                                                   const Backend& backend,
                                                   const ModelConfig& config);
// The forms that its load keeps, of a config without files; errors likewise.
WeightForms forms_in_4bit(const Backend& backend, const ModelConfig& config,
                          const std::string& where);

}  // namespace strata::model
