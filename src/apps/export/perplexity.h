// SPDX-License-Identifier: Apache-2.0
// How well models predict a file of texts: exp of the mean loss of a token.
#pragma once
#include <string>

#include "data/dataset.h"

namespace strata::apps {

// The examples of a JSONL file as strata train reads them, by a model's tokenizer and template.
data::Dataset read_examples(const std::string& path, const std::string& model);

// `adapter` may be empty. Loads the model, and lets it go.
double perplexity(const std::string& model, const std::string& adapter, const data::Dataset& data,
                  int threads);

}  // namespace strata::apps
