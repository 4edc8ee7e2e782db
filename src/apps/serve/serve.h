// SPDX-License-Identifier: Apache-2.0
// strata serve: the Tinker server. Wiring: names to directories, engines, scheduler and
// TinkerServer.
#pragma once
#include "server/tinker/options/options.h"

namespace strata::apps {

// Serves until SIGTERM or SIGINT; SIGHUP reads the keys and opens the audit log again. Returns the
// exit code. `verbose`: prints its whole memory plan at the start.
int run_serve(const server::ServeOptions& options, bool verbose = false);

}  // namespace strata::apps
