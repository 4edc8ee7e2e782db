// SPDX-License-Identifier: Apache-2.0
// `strata bench WORK`: speeds of training, prefill and decoding as shares of this machine's limits,
// which are probed in the same process and interleaved with the work.
#pragma once
#include <string>

#include "setup/stages.h"

namespace strata::apps {

struct BenchOptions {
  std::string work;
  std::string model;  // empty: Qwen3-0.6B's shape with random weights made in memory
  std::string dtype = "bf16";
  std::string weights = "auto";  // auto, narrow or bf16 of a model; of random ones bf16 or a form
  std::string method = "lora";   // of a training work: lora or full
  std::string recompute;         // of a training work; empty: its own
  std::string memory;   // bytes of a training work, which choose its passes and what is kept
  std::string offload;  // folder of what these offload; empty: that of temporary files
  int threads = 0;
  int repeat = 5;
  int64_t context = 0;  // of a decoding work: also the cost behind so many tokens; 0: no
  bool json = false;
  StageOptions stages;
  std::string trace;  // file of the timeline; empty: none
  std::string out;    // of cluster: the file to write

  [[nodiscard]] bool trains_base() const { return method == "full"; }
  // Whether a training work runs as a pipeline: any option of stages was given.
  [[nodiscard]] bool divides() const { return !(stages == StageOptions()); }
};

// Prints one line: a JSON object with --json, else words.
int run_bench(const BenchOptions& options);

}  // namespace strata::apps
