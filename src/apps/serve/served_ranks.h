// SPDX-License-Identifier: Apache-2.0
// What serve --ranks can do, and what its processes must have in common.
#pragma once
#include <string>
#include <vector>

#include "apps/serve/engine_host.h"
#include "schedule/parallel_layout.h"
#include "server/tinker/options/options.h"

namespace strata::apps {

// An Error that says why not, for a division that a server has not.
void check_served_division(const schedule::ParallelLayout& layout,
                           const server::ServeOptions& options);

// An Error that names both where two processes differ. Collective.
void check_processes_alike(Comm& processes, const std::vector<std::string>& directories,
                           const HostOptions& options);

}  // namespace strata::apps
