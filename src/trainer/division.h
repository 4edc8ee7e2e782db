// SPDX-License-Identifier: Apache-2.0
// `strata train --ranks auto`: as many ranks as mpirun has started divide the model as a search
// finds best (setup/division_search.h) for the run's first step, on --cluster or on what these
// ranks measure now. It is a choice alone: the run is the one that has these options by hand.
#pragma once
#include "backend/comm.h"
#include "trainer/train.h"

namespace strata::apps {

constexpr const char* kAutoRanks = "auto";

// The options of a command that was started for --ranks auto as they are until the search is done:
// so many data ranks. Error where mpirun has started none.
StageOptions started_stages(const TrainOptions& options);
// The options with those that the search has found; the first rank says which. Error for options
// that it sets. Collective.
TrainOptions choose_division(const TrainOptions& given, Comm& comm);

}  // namespace strata::apps
