// SPDX-License-Identifier: Apache-2.0
// Few cases in place of many: each two settings of a case meet in one of them.
#pragma once
#include <vector>

#include "tests/stages/staged_run.h"

namespace strata::engine {

// All with STRATA_STAGES=all in the environment; else a few that have every pair of settings that
// any of them has.
std::vector<StagedCase> chosen_of(const std::vector<StagedCase>& all);

}  // namespace strata::engine
