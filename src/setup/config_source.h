// SPDX-License-Identifier: Apache-2.0
// A model's config.json, for commands that need no weights: in a model directory, as a file, or
// built in.
#pragma once
#include <string>

#include "base/model_texts.h"

namespace strata::apps {

struct ConfigSource {
  std::string json;
  std::string where;  // for messages
  std::string dir;    // the model, for its weights; empty when there is none
  ModelTexts texts = ModelTexts(std::string());  // and its small files
};

// Error{kNotFound}, which names the option, where there is no such thing.
ConfigSource read_config_source(const std::string& option, const std::string& config);

// The names of built-in configurations, comma-separated; and of a few, for help.
std::string config_names_text();
std::string config_examples_text();

}  // namespace strata::apps
