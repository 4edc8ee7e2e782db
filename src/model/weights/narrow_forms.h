// SPDX-License-Identifier: Apache-2.0
// Which matrices of a model may stay in the few bits of its files.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/source.h"
#include "model/weights/load.h"
#include "model/weights/weights.h"

namespace strata::model {

// Of the checkpoint's matrices that products, embeddings and heads read; those are left out that
// have to be dequantised, since no form holds their values, and experts of one layer and projection
// whose forms differ. Faults that match_tensors finds are an Error.
WeightForms narrow_forms(const CheckpointSource& checkpoint, const Backend& backend,
                         const ModelConfig& config);

// Moves a parameter that is kept in few bits from the checkpoint to its panels.
void load_narrow(Backend& backend, const CheckpointSource& checkpoint, ModelWeights& weights,
                 size_t index);

// What a load keeps; kNarrow: an Error where that is nothing.
WeightForms forms_to_keep(const CheckpointSource& checkpoint, const Backend& backend,
                          const ModelConfig& config, DType compute_dtype, KeepWeights keep);

}  // namespace strata::model
