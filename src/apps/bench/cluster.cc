// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/cluster.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "apps/options.h"
#include "base/error.h"
#include "base/files.h"
#include "report/format.h"
#include "setup/cluster_measure.h"
#include "setup/ranks.h"

namespace strata::apps {
namespace {

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
  const Cluster cluster = measure_cluster(comm, dtype_of(options), options.threads);
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
  write_cluster(options, measure_cluster(dtype_of(options), options.threads));
  return 0;
}

}  // namespace strata::apps
