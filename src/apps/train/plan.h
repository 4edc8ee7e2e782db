// TrainPlan: what a run of `strata train` will take, before its first step; and with --memory the
// passes and the activations they keep, so that the whole run stays within it. Engine thread only.
#pragma once
#include <string>

#include "apps/train/job.h"

namespace strata::apps {

// Sets the engine's tokens of a pass and what it recomputes, by --memory. Error{kInvalidArgument}
// when not even the smallest pass with full recompute fits. Without --memory nothing happens.
void fit_memory(TrainJob& job);

// "1.9 GiB: weights 1.11 GiB, ..." of the run as it is set.
std::string memory_text(TrainJob& job);

// A table of the activations, what is kept of each and what the rest costs; empty where all is
// kept.
std::string recompute_text(TrainJob& job);

}  // namespace strata::apps
