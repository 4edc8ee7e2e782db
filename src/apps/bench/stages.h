// SPDX-License-Identifier: Apache-2.0
// `strata bench` of a training work in stages or over ranks: what a pipeline of threads, or of
// processes, does against the bound that its schedule and its split allow.
#pragma once
#include <string>

#include "apps/bench/bench.h"
#include "apps/bench/shapes.h"

namespace strata::apps {

struct StagedWork {
  std::string name;
  int64_t sequences = 1;
  int64_t length = 512;
  std::string recompute;
  BenchShape shape = BenchShape::kQwen3Dense;  // without a model directory
};

// Prints one line: a JSON object with --json, else words.
int bench_stages(const StagedWork& work, const BenchOptions& options);

}  // namespace strata::apps
