// SPDX-License-Identifier: Apache-2.0
// How to sample from a model: generation_config.json's values as the keys general.sampling.* of a
// GGUF file, and back. llama.cpp has no do_sample: a temperature of 0 is greedy there.
#pragma once
#include <string>

#include "base/model_texts.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/gguf_header.h"

namespace strata {

// Adds what generation_config.json says; nothing where there is no such file, or of values that are
// null. Error{kInvalidArgument} for a value that is no number of its kind.
void add_sampling(const ModelTexts& texts, GgufHeader& header);

// The members of generation_config.json, each behind ", "; empty where the keys say nothing.
std::string gguf_sampling_members(const GgufKeys& keys);

}  // namespace strata
