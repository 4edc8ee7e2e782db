// SPDX-License-Identifier: Apache-2.0
// The small files of a model directory: those that belong to the model whatever its weights are
// (configuration, tokenizer, chat template).
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/source.h"
#include "model/weights/weights.h"
#include "report/table.h"

namespace strata::apps {

// The text of a config.json without `quantization_config`: Strata saves weights in full types, so a
// copy must not say otherwise. Unchanged where there is none.
std::string without_quantization(const std::string& config_text, const std::string& where);

// Names of the small files of a model directory, config.json first.
std::span<const std::string_view> model_file_names();

// The weights of a model's directory or file; null where there are none, as next to a config alone.
std::unique_ptr<CheckpointSource> find_weights(const std::string& path);

// Of those that the model has.
int64_t model_file_bytes(const ModelTexts& texts);
// Copies those that the model has, config.json without `quantization_config`; the target
// folder exists. Nothing happens where both are the same folder.
void copy_model_files(const ModelTexts& from, const std::string& to_dir);

// What dequantising a model that was stored in few bits takes, "94 MB in the file, 269 MB in bf16";
// empty where it was not, or without a source.
std::string dequantised_text(const CheckpointSource* source);

// What a model keeps in 4 and 8 bits, "40 q4_k, 8 q6_k: 94 MB of 101 MB", and how many matrices of
// its file it dequantised all the same; empty where it keeps none so.
std::string narrow_text(const model::ModelWeights& weights, const CheckpointSource* source);
// The row of a table that says so, or that weights are dequantised; or none.
void add_weights_row(const model::ModelWeights& weights, const CheckpointSource* source,
                     report::Table& table);

}  // namespace strata::apps
