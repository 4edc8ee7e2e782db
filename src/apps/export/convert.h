// SPDX-License-Identifier: Apache-2.0
// strata convert: a model in another format, another type or another layout, with adapters added
// where they are named.
#pragma once
#include <string>
#include <vector>

#include "apps/export/export_model.h"

namespace strata::apps {

struct ConvertOptions {
  std::string model;
  std::vector<std::string> adapters;           // as typed: DIR|ARCHIVE[:WEIGHT]
  std::vector<model::AdapterPart> parts = {};  // what they name (apps/resolve_paths.h)
  Archives archives = {};                      // that they lie in
  std::string to = "safetensors";              // gguf or gguf-lora
  std::string type = "keep";                   // a full type, one of GGUF's or nf4
  std::string layout = "layers";               // or stacked
  std::string shard_size = "5GiB";
  std::string out;
  std::string modelfile;  // of ollama, for a GGUF file
  std::string report;
  bool verbose = false;  // a table of what rounding changed
  std::string data;      // as strata train reads it, whose perplexity is printed before and after
  int threads = 0;
};

int run_convert(const ConvertOptions& options);

}  // namespace strata::apps
