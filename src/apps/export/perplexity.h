// SPDX-License-Identifier: Apache-2.0
// How well models predict files of texts: exp of the mean loss of a token.
#pragma once
#include <string>

#include "data/dataset.h"
#include "setup/load_spec.h"

namespace strata::apps {

// `adapter` may be empty. Loads the model, and lets it go.
double measure_perplexity(const LoadSpec& spec, const std::string& adapter,
                          const data::Dataset& data);

}  // namespace strata::apps
