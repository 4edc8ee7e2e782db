// The small files of a model directory: those that belong to the model whatever its weights are
// (configuration, tokenizer, chat template).
#pragma once
#include <string>

namespace strata::apps {

// Copies those that are there; the target folder exists. Nothing happens where both are the same
// folder.
void copy_model_files(const std::string& from_dir, const std::string& to_dir);

}  // namespace strata::apps
