// SPDX-License-Identifier: Apache-2.0
// Which matrices of a model may stay in the few bits of its files.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/source.h"
#include "model/weights/load.h"
#include "model/weights/weights.h"

namespace strata::model {

// How much of a file is read to find values that a form does not hold. A load reads codes too, of
// which not each is a number, unless ranks divide the weights: then load_narrow_parameter fails by
// name on those of its rows.
enum class NarrowLook : uint8_t { kHeader, kScales, kCodes };

struct KeptForms {
  WeightForms forms;
  std::vector<std::string> faults;  // of matrices that have a form, and values that it lacks

  // Names tensors that are dequantised for what was found; empty without any.
  [[nodiscard]] std::string warning() const;
};

// What WeightForms calls a parameter: by its own row, whatever tensor it is a part of.
std::string form_name(const ModelConfig& config, const Parameter& parameter);

// The forms of the matrices that products, embeddings and heads read; those are left out that have
// to be dequantised, since no form holds their values, and experts of one layer and projection
// whose forms differ. Layers outside of a part are not looked at. Faults that
// match_parameters finds are an Error.
KeptForms find_narrow_forms(const CheckpointSource& checkpoint, const Backend& backend,
                            const ModelConfig& config, NarrowLook look,
                            std::optional<LayerRange> part = {});

// The forms that a load keeps of files that nobody has looked at, as config.json describes them:
// experts in MXFP4 (gpt-oss) and nothing else.
WeightForms forms_of_described_files(const Backend& backend, const ModelConfig& config);

// Moves a parameter that is kept in few bits from the checkpoint to its panels; of weights that
// ranks divide, the slices with rows of this rank. An Error for a value that the form does not
// hold.
void load_narrow_parameter(Backend& backend, const CheckpointSource& checkpoint,
                           ModelWeights& weights, size_t index);

// What a load keeps. kNarrow: an Error where that is nothing; it looks at headers alone, and
// load_narrow_parameter fails by name.
KeptForms choose_forms_to_keep(const CheckpointSource& checkpoint, const Backend& backend,
                               const ModelConfig& config, DType compute_dtype, KeepWeights keep,
                               NarrowLook look, std::optional<LayerRange> part = {});

}  // namespace strata::model
