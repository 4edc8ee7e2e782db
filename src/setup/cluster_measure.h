// SPDX-License-Identifier: Apache-2.0
// A cluster's numbers (setup/cluster_file.h) as they are measured on this machine, or on those that
// mpirun has started ranks on.
#pragma once
#include "backend/comm.h"
#include "setup/cluster_file.h"

namespace strata::apps {

// A rank that has so many threads (0: all cores), and a link between two threads of this process.
Cluster measure_cluster(DType dtype, int threads);
// All ranks at once, each with its part of its machine's threads: the numbers of the slowest one,
// and on rank 0 the links to a rank of its machine and to one of another. Collective.
Cluster measure_cluster(Comm& comm, DType dtype, int threads);

}  // namespace strata::apps
