// SPDX-License-Identifier: Apache-2.0
// The weights of a model as commands find them, and what they say of those in few bits.
#pragma once
#include <memory>
#include <string>

#include "checkpoint/source.h"
#include "model/weights/weights.h"
#include "report/table.h"

namespace strata::apps {

// The weights of a model's directory or file; null where there are none, as next to a config alone.
std::unique_ptr<CheckpointSource> find_weights(const std::string& path);

// What dequantising a model that was stored in few bits takes, "94 MB in the file, 269 MB in bf16";
// empty where it was not, or without a source.
std::string dequantised_text(const CheckpointSource* source);

// What a model keeps in 4 to 8 bits, "40 q4_k, 8 q6_k: 94 MB of 101 MB", and how many matrices of
// its file it dequantised all the same; empty where it keeps none so.
std::string narrow_text(const model::ModelWeights& weights, const CheckpointSource* source);
// The row of a table that says so, or that weights are dequantised; or none.
void add_quantised_weights_row(const model::ModelWeights& weights, const CheckpointSource* source,
                               report::Table& table);

}  // namespace strata::apps
