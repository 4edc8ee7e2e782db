// SPDX-License-Identifier: Apache-2.0
// What --limits stands for: values of rows that say how much may wait, be alive or be kept, which
// their own options, a file and the environment override. Those that are shares of --memory follow
// that instead.
#pragma once
#include <string>

#include "server/tinker/options/options.h"

namespace strata::server {

// As the weakest source. "small", "default" (what the rows have) or "large".
OptionSource limits_source(const std::string& preset);

}  // namespace strata::server
