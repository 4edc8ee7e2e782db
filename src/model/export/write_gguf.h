// SPDX-License-Identifier: Apache-2.0
// A source of weights written as a GGUF file: the keys, tensors and orders that the reader
// (checkpoint/gguf/) undoes. The header is read back before any data is written, so that what the
// file cannot say of a model is refused. Memory is one slice of a tensor. Engine thread only.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/model_texts.h"
#include "checkpoint/source.h"
#include "model/export/encode.h"
#include "model/weights/load.h"

namespace strata::model {

struct GgufOptions {
  std::string type;     // of matrices: f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0 or mxfp4
  std::string name;     // general.name
  bool unties = false;  // embedding and head are apart in the source, and were not in `names`
};

// `source` is that of `names` or one made of it; `names` was loaded without memory (kNoLayers), and
// `texts` are its small files. Matrices whose rows the type's blocks do not divide are F16, norms
// and routers F32. Of q4_0 and mxfp4, embedding and head are Q8_0; K-quants are mixed as
// llama-quantize mixes them (model/export/gguf_mixture.h). Returns what rounding changed;
// nothing where a signal asked to stop, and then there is no file.
std::optional<std::vector<TensorError>> write_gguf(Backend& backend, const CheckpointSource& source,
                                                   const LoadedModel& names,
                                                   const ModelTexts& texts, const std::string& path,
                                                   const GgufOptions& options);

}  // namespace strata::model
