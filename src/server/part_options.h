// SPDX-License-Identifier: Apache-2.0
// The options of each of the server's parts, out of what the operator said.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "server/http/server.h"
#include "server/store/checkpoints/data_dir.h"
#include "server/tinker/base_names.h"
#include "server/tinker/budget.h"
#include "server/tinker/keys.h"
#include "server/tinker/options/options.h"
#include "server/tinker/service/service.h"

namespace strata::server {

KeySources key_sources(const ServeOptions& options);
// Where the operator has files that a failure may name.
std::vector<std::string> operator_folders(const ServeOptions& options, const DataDir& data,
                                          const BaseNames& names);
ServiceOptions service_options(const ServeOptions& options, const Budget& budget,
                               const DataDir& data, const BaseNames& names, int64_t boot);
HttpOptions http_options(const ServeOptions& options, const Budget& budget);
HttpOptions metrics_options(const ServeOptions& options, int port);

}  // namespace strata::server
