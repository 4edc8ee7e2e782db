// SPDX-License-Identifier: Apache-2.0
// Loading a model whose config its caller has read: once, where stages load their parts of it, or
// where a plan came first. Engine thread only.
#pragma once
#include <string>

#include "base/model_texts.h"
#include "model/weights/load.h"

namespace strata::model {

// The config among these texts.
ParsedConfig read_config(const ModelTexts& texts, bool strict_config);

// load_model() with that config of the model; `options` need not say how strict it was read.
LoadedModel load_configured(Backend& backend, const std::string& dir, ParsedConfig config,
                            const LoadOptions& options);

}  // namespace strata::model
