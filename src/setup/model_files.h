// SPDX-License-Identifier: Apache-2.0
// The small files of a model directory: those that belong to the model whatever its weights are
// (configuration, tokenizer, chat template).
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/model_texts.h"

namespace strata::apps {

// The text of a config.json without `quantization_config`: Strata saves weights in full types, so a
// copy must not say otherwise. Unchanged where there is none.
std::string without_quantization(const std::string& config_text, const std::string& where);

// Names of the small files of a model directory, config.json first.
std::span<const std::string_view> model_file_names();

// The bytes of those that the model has.
int64_t count_model_file_bytes(const ModelTexts& texts);
// Copies those that the model has, config.json without `quantization_config`; the target
// folder exists. Nothing happens where both are the same folder.
void copy_model_files_as_unquantized(const ModelTexts& from, const std::string& to_dir);

}  // namespace strata::apps
