// SPDX-License-Identifier: Apache-2.0
// strata merge: a model with LoRA adapters added to its weights, as a Hugging Face directory.
#pragma once
#include <string>
#include <vector>

#include "model/export/merged_source.h"

namespace strata::apps {

struct MergeOptions {
  std::string model;
  std::vector<std::string> adapters;           // as typed: DIR or DIR:WEIGHT
  std::vector<model::AdapterPart> parts = {};  // what they name (apps/find_models.h)
  std::string out;
  std::string report;
  int threads = 0;
};

int run_merge(const MergeOptions& options);

}  // namespace strata::apps
