// SPDX-License-Identifier: Apache-2.0
// strata inspect of a LoRA adapter: what it adapts, its ranks, its base, its sizes, its faults.
#pragma once
#include "apps/inspect.h"

namespace strata::apps {

// options.model is the adapter's directory (setup/model_path.h). As run_inspect.
int inspect_adapter(const InspectOptions& options);

}  // namespace strata::apps
