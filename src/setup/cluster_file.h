// SPDX-License-Identifier: Apache-2.0
// A file that says what the ranks of a cluster can do and what joins them, in TOML:
//   flops = 4e11                  # a rank's products of the run's dtype, in a second
//   f32_flops = 2e11              # those in f32 [flops, or half of it where the dtype is bf16]
//   read_bytes_per_s = 2e10       # of a rank's memory
//   memory = "64GiB"              # of a rank
//   link_bytes_per_s = 1e10       # between two ranks of a node
//   link_latency_s = 1e-5
//   ranks_per_node = 8            # [all ranks are on one node]
//   node_link_bytes_per_s = 1e9   # between two ranks of two nodes
//   node_link_latency_s = 5e-5
#pragma once
#include <cstdint>
#include <string>

#include "engine/plan/cost.h"
#include "schedule/simulate.h"
#include "tensor/dtype.h"

namespace strata::apps {

struct Cluster {
  engine::MachineLimits limits = {};  // of a rank
  int64_t memory = 0;                 // of a rank
  schedule::Links links = {};
};

// The file's, or those of a machine by its name (setup/named_clusters.h), which comes first. Throws
// Error that names file and field.
Cluster read_cluster_file(const std::string& path, DType dtype);
// The text of such a file.
std::string cluster_text(const Cluster& cluster);

}  // namespace strata::apps
