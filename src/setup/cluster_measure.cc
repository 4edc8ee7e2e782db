// SPDX-License-Identifier: Apache-2.0
#include "setup/cluster_measure.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/mpi_comm.h"
#include "backend/thread_comm.h"
#include "base/clock.h"
#include "base/process_memory.h"
#include "ops/limits.h"
#include "planner/limits.h"
#include "setup/backend.h"
#include "setup/ranks.h"

namespace strata::apps {
namespace {

constexpr int64_t kTag = 0;
constexpr int64_t kShortBytes = 8, kLongBytes = 16 << 20;
constexpr int kShortTrips = 1000, kLongTrips = 50;
// Each takes about 0.1 s: a file is made once, and says how fast all is that is planned with it.
constexpr int kLimitProbes = 20;

// The best half of a round trip between rank 0 and `peer`, on rank 0; elsewhere of no use. Of a few
// the best counts, since one that the system interrupts is no limit.
double measure_one_way_seconds(Comm& comm, int peer, int64_t bytes, int trips) {
  std::vector<char> message(static_cast<size_t>(bytes));
  double best = 1e9;
  for (int i = 0; i < trips; ++i) {
    const double start = now_seconds();
    if (comm.rank() == 0) {
      comm.send_bytes(peer, kTag, message.data(), bytes);
      comm.receive_bytes(peer, kTag, message.data(), bytes);
    } else {
      comm.receive_bytes(0, kTag, message.data(), bytes);
      comm.send_bytes(0, kTag, message.data(), bytes);
    }
    best = std::min(best, (now_seconds() - start) / 2);
  }
  return best;
}

// The link between rank 0 and `peer`; other ranks wait for nobody.
schedule::Link measure_link(Comm& comm, int peer) {
  if (comm.rank() != 0 && comm.rank() != peer) return {};
  const double latency = measure_one_way_seconds(comm, peer, kShortBytes, kShortTrips);
  const double all = measure_one_way_seconds(comm, peer, kLongBytes, kLongTrips);
  return {.latency_s = latency,
          .bytes_per_s = static_cast<double>(kLongBytes) / std::max(all - latency, 1e-9)};
}

Cluster measure_rank(DType dtype, int threads, int ranks_here) {
  const std::unique_ptr<Backend> backend = make_backend(threads);
  Cluster cluster = {.memory = read_usable_memory() / ranks_here};
  ops::LimitProbe probe(*backend);
  cluster.limits = planner::probe_limits(probe, dtype);
  for (int i = 1; i < kLimitProbes; ++i) {
    const engine::MachineLimits again = planner::probe_limits(probe, dtype);
    cluster.limits.flops = std::max(cluster.limits.flops, again.flops);
    cluster.limits.f32_flops = std::max(cluster.limits.f32_flops, again.f32_flops);
    cluster.limits.bytes = std::max(cluster.limits.bytes, again.bytes);
  }
  return cluster;
}

// The least of every number over all ranks.
void take_slowest(Comm& comm, Cluster& cluster) {
  const double own[] = {cluster.limits.flops, cluster.limits.f32_flops, cluster.limits.bytes,
                        static_cast<double>(cluster.memory)};
  std::vector<double> all;
  comm.all_gather(own, all);
  const auto least = [&](size_t field) {
    double value = all[field];
    for (size_t i = field; i < all.size(); i += std::size(own)) value = std::min(value, all[i]);
    return value;
  };
  cluster.limits.flops = least(0);
  cluster.limits.f32_flops = least(1);
  cluster.limits.bytes = least(2);
  cluster.memory = static_cast<int64_t>(least(3));
}

// Which ranks rank 0 is joined to: one of its own node, and one of another; 0: there is none.
struct Peers {
  int near = 0, far = 0;
  int ranks_of_node = 1;  // of the first one
};
Peers find_peers(Comm& comm) {
  Peers peers;
  const std::vector<std::string> hosts = gather_texts(comm, host_name());  // on rank 0
  for (int rank = 1; rank < static_cast<int>(hosts.size()); ++rank) {
    const bool is_near = hosts[static_cast<size_t>(rank)] == hosts.front();
    int& peer = is_near ? peers.near : peers.far;
    if (peer == 0) peer = rank;
    peers.ranks_of_node += is_near ? 1 : 0;
  }
  broadcast(comm, peers);
  return peers;
}

// Where a node has one rank its ranks have the link between nodes too.
schedule::Links measure_links(Comm& comm) {
  const Peers peers = find_peers(comm);
  schedule::Links links;
  if (peers.near != 0) links.link = measure_link(comm, peers.near);
  if (peers.far == 0) return links;
  links.node_link = measure_link(comm, peers.far);
  if (peers.near == 0) links.link = links.node_link;
  links.ranks_per_node = peers.ranks_of_node;
  return links;
}

}  // namespace

Cluster measure_cluster(DType dtype, int threads) {
  Cluster cluster = measure_rank(dtype, threads, /*ranks_here=*/1);
  run_ranks(2, [&](Comm& comm) {
    const schedule::Link link = measure_link(comm, 1);
    if (comm.rank() == 0) cluster.links.link = link;
  });
  return cluster;
}

Cluster measure_cluster(Comm& comm, DType dtype, int threads) {
  Cluster cluster = measure_rank(dtype, threads_of(comm.rank_here(), comm.ranks_here(), threads),
                                 comm.ranks_here());
  take_slowest(comm, cluster);
  cluster.links = measure_links(comm);
  return cluster;
}

}  // namespace strata::apps
