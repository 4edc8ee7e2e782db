// SPDX-License-Identifier: Apache-2.0
// The options of each of the server's parts, out of what the operator said.
#pragma once
#include <cstdint>

#include "server/budget.h"
#include "server/checkpoints/data_dir.h"
#include "server/http/server.h"
#include "server/keys.h"
#include "server/options/options.h"
#include "server/service/service.h"

namespace strata::server {

KeySources key_sources(const ServeOptions& options);
ServiceOptions service_options(const ServeOptions& options, const Budget& budget,
                               const DataDir& data, int64_t boot);
HttpOptions http_options(const ServeOptions& options, const Budget& budget);
HttpOptions metrics_options(const ServeOptions& options, int port);

}  // namespace strata::server
