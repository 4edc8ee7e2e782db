// SPDX-License-Identifier: Apache-2.0
// `strata bench cluster --out FILE.toml`: what a rank of this machine, or of the machines that
// --ranks runs on, does in a second, and what joins two of them: the file of strata plan train
// --cluster (setup/cluster_file.h).
#pragma once
#include "apps/bench/bench.h"

namespace strata::apps {

// With --ranks collective: each rank measures at once with its part of the cores, and the file has
// the slowest one's numbers. Without, the one rank has all threads, and two threads are its link.
int bench_cluster(const BenchOptions& options);

}  // namespace strata::apps
