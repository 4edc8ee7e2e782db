// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/options.h"
#include "apps/plan/cluster_file.h"
#include "backend/mpi_comm.h"
#include "backend/thread_comm.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/process_memory.h"
#include "ops/limits.h"
#include "planner/limits.h"
#include "report/format.h"
#include "setup/backend.h"
#include "setup/ranks.h"

namespace strata::apps {
namespace {

constexpr int64_t kTag = 0;
constexpr int64_t kShortBytes = 8, kLongBytes = 16 << 20;
constexpr int kShortTrips = 200, kLongTrips = 6;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "bench cluster: " + what);
}

// An option that would change nothing is an error.
void check_options_of_cluster(const BenchOptions& given) {
  const BenchOptions absent;
  const std::pair<std::string_view, bool> of_works[] = {
      {"model", given.model != absent.model},
      {"weights", given.weights != absent.weights},
      {"method", given.method != absent.method},
      {"recompute", given.recompute != absent.recompute},
      {"memory", given.memory != absent.memory},
      {"offload", given.offload != absent.offload},
      {"context", given.context > 0},
      {"repeat", given.repeat != absent.repeat},
      {"trace", !given.trace.empty()},
      {"json", given.json}};
  for (const auto& [name, is_given] : of_works) {
    if (is_given) refuse(fmt::format("--{}: has no effect; leave it out", name));
  }
  StageOptions ranks;
  ranks.ranks = given.stages.ranks;
  ranks.bind = given.stages.bind;
  if (given.stages != ranks) refuse("of ranks --ranks and --bind alone; a model is not divided");
  if (given.out.empty()) refuse("--out FILE.toml: where it is written");
}

DType dtype_of(const BenchOptions& options) {
  return options.dtype == "f32" ? DType::kF32 : DType::kBF16;
}

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
  cluster.limits = planner::probe_limits(*backend, dtype, ops::LimitProbe::kReadBytes);
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

void write_cluster(const BenchOptions& options, const Cluster& cluster) {
  write_file_atomic(options.out, cluster_text(cluster));
  const auto per_s = [](double value) { return report::format_count(value); };
  fmt::print("{}: {}FLOP/s, reads {}B/s, {} of memory; a link {}B/s and {:.3g} us\n", options.out,
             per_s(cluster.limits.flops), per_s(cluster.limits.bytes),
             report::format_bytes(cluster.memory), per_s(cluster.links.link.bytes_per_s),
             cluster.links.link.latency_s * 1e6);
}

int bench_as_rank(Comm& comm, const BenchOptions& options) {
  if (comm.size() == 1)
    refuse(fmt::format("--ranks {}: a link has two ends", options.stages.ranks));
  BenchOptions copy = options;
  check_ranks_alike(comm, collect_rank_facts(option_table_of(copy)));  // and all begin at once
  const int threads = threads_of(comm.rank_here(), comm.ranks_here(), options.threads);
  Cluster cluster = measure_rank(dtype_of(options), threads, comm.ranks_here());
  take_slowest(comm, cluster);
  cluster.links = measure_links(comm);
  if (comm.rank() == 0) write_cluster(options, cluster);
  return 0;
}

}  // namespace

int bench_cluster(const BenchOptions& options) {
  check_options_of_cluster(options);
  if (!options.stages.ranks.empty()) {
    return run_as_rank(options.stages, [&](Comm& comm, const schedule::ParallelLayout&) {
      return bench_as_rank(comm, options);
    });
  }
  Cluster cluster = measure_rank(dtype_of(options), options.threads, /*ranks_here=*/1);
  run_ranks(2, [&](Comm& comm) {
    const schedule::Link link = measure_link(comm, 1);
    if (comm.rank() == 0) cluster.links.link = link;
  });
  write_cluster(options, cluster);
  return 0;
}

}  // namespace strata::apps
