// SPDX-License-Identifier: Apache-2.0
// strata merge: a model with LoRA adapters added to its weights, as a Hugging Face directory.
#pragma once
#include <string>
#include <vector>

#include "apps/export/export_model.h"

namespace strata::apps {

struct MergeOptions {
  std::string model;
  std::vector<std::string> adapters;           // as typed: DIR|ARCHIVE[:WEIGHT]
  std::vector<model::AdapterPart> parts = {};  // what they name (apps/resolve_paths.h)
  Archives archives = {};                      // that they lie in
  std::string out;
  std::string report;
  bool verbose = false;  // a table of what rounding changed
  int threads = 0;
};

int run_merge(const MergeOptions& options);

}  // namespace strata::apps
