// SPDX-License-Identifier: Apache-2.0
// The data of a run of ranks as processes: rank 0 reads it, and the others get its examples.
#pragma once
#include "trainer/job.h"

namespace strata::apps {

// Gives all ranks rank 0's data; on the others files have no content, only the examples that came
// of it. Collective.
void broadcast_data(Comm& comm, TrainData& data);

}  // namespace strata::apps
