// SPDX-License-Identifier: Apache-2.0
// How long an optimizer step will last: what it computes and moves, over what this machine can do
// in a second. Engine thread only.
#pragma once
#include <cstdint>
#include <string>

#include "backend/backend.h"

namespace strata::apps {

struct MachineLimits {
  double flops = 0.0;  // a second
  double bytes = 0.0;  // read, a second
  // Of a disk, as if nothing were computed meanwhile: stated, not probed, since what the system
  // keeps of a file in memory would be what a probe measures (engine/plan/recompute_plan.h).
  double file_bytes = 1e9;
  std::string source = "probed now";
};

// The best of a few short probes of about 0.1 s together, which take no more memory than
// `most_bytes` and give it back.
MachineLimits probe_limits(Backend& backend, DType dtype, int64_t most_bytes);

struct StepWork {
  double flops = 0.0;       // of products and attention
  double bytes = 0.0;       // moved by all that is between them
  double file_bytes = 0.0;  // written to files and read from them
};

double step_seconds(const StepWork& work, const MachineLimits& limits);

}  // namespace strata::apps
