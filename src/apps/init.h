// SPDX-License-Identifier: Apache-2.0
// strata init: a checkpoint with random weights, as Hugging Face initialises them, for a given or a
// named configuration.
#pragma once
#include <cstdint>
#include <string>

namespace strata::apps {

struct InitOptions {
  std::string config;  // a model directory, a config.json, or one of the names that --help lists
  std::string out;
  std::string dtype = "auto";  // auto: what the configuration says of its weights; bf16, f32
  uint64_t seed = 0;
  bool mtp = false;  // with the layer of multi-token prediction that the configuration has
  int threads = 0;
};

// Writes options.out: config.json, model.safetensors and, from a directory, its tokenizer files.
int run_init(const InitOptions& options);

}  // namespace strata::apps
