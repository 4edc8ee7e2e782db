// SPDX-License-Identifier: Apache-2.0
// What tells one model directory from another, for a run that is to be continued.
#pragma once
#include <string>

#include "base/model_texts.h"

namespace strata::apps {

// A hash of all small files that results depend on (config, tokenizer, chat template, generation
// config), and of every tensor's name, type and shape with sixteen pieces of its bytes, spread over
// it. So another base of equal shapes differs, as does a copy that was trained on; a copy in
// another folder does not. Reads a few pages of a tensor, not the whole. Throws Error.
std::string compute_model_identity(const ModelTexts& texts);
// A hash of an adapter's content, by its two files; of a folder without them as of a model.
std::string hash_adapter_or_model(const std::string& path);

}  // namespace strata::apps
