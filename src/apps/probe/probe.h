// SPDX-License-Identifier: Apache-2.0
// `strata probe`: runs a model on given token ids and writes what it computed. A test instrument:
// the engine's ordinary passes with a sink, nothing of its own below.
#pragma once
#include <string>
#include <vector>

#include "setup/engine_setup.h"
#include "setup/stages.h"

namespace strata::apps {

struct ProbeOptions : EngineSetup {
  ProbeOptions() { dtype = "f32"; }

  std::vector<std::string> adapters;
  std::string request;
  std::string out;
  std::string stats;  // file; empty: none
  StageOptions stages;
};

// Writes options.out and stats, whole or not at all. Throws Error on a fault of the request or the
// files.
int run_probe(const ProbeOptions& options);

}  // namespace strata::apps
