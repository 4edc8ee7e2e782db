// SPDX-License-Identifier: Apache-2.0
#include "trainer/division.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/env.h"
#include "base/error.h"
#include "base/say.h"
#include "report/format.h"
#include "report/progress.h"
#include "setup/cluster_measure.h"
#include "setup/division_search.h"
#include "setup/ranks.h"
#include "trainer/job.h"
#include "trainer/settings.h"
#include "trainer/state.h"

namespace strata::apps {
namespace {

// The file's numbers, or what the ranks measure now; a --machine is divided among its ranks. On the
// first rank, whose files count. Collective.
Cluster find_cluster(const TrainOptions& options, const LoadSpec& spec, Comm& comm) {
  bool measures = options.cluster.empty();
  broadcast(comm, measures);
  if (!measures)
    return comm.rank() == 0 ? read_cluster_file(options.cluster, spec.dtype) : Cluster();
  Cluster cluster = measure_cluster(comm, spec.dtype, options.threads);
  if (comm.rank() != 0 || !spec.limits) return cluster;
  const double ranks = comm.ranks_here();
  cluster.limits = *spec.limits;
  for (double* limit : {&cluster.limits.flops, &cluster.limits.f32_flops, &cluster.limits.bytes})
    *limit /= ranks;
  return cluster;
}

// What --memory says of each process is what a rank has.
void limit_memory(const TrainOptions& options, Cluster& cluster) {
  if (const std::optional<planner::Budget> budget = budget_of(options.memory))
    cluster.memory = std::min(cluster.memory, budget->bytes);
}

FoundDivision search_best(const TrainOptions& options, const LoadSpec& spec, const Cluster& cluster,
                          int num_ranks) {
  const TrainData data = read_train_data(options, spec);
  const bool resumes = options.resume && has_train_state(options.out);
  const TrainSettings settings = resolve_settings(
      options, spec, data, resumes ? read_recorded_options(options.out) : std::string());
  DivisionSearch search = {.spec = spec, .cluster = cluster, .num_ranks = num_ranks};
  if (options.method == "full") search.how = base_step_of(options);
  if (options.recompute != "none") search.recompute = {options.recompute};
  search.tries_chunks = options.samples.empty();  // which ranks with several stages do not answer
  std::optional<report::Progress> progress;
  const FoundDivisions found = search_divisions(
      search,
      [&](const engine::Engine& whole, const planner::Division& division) {
        return shape_of_first_step(spec, settings, whole.config(), division, data);
      },
      [&](int64_t done, int64_t total) {
        if (!progress) {
          progress.emplace(
              report::ProgressOptions{.label = "search", .total = total, .quiet_seconds = 2});
        }
        progress->update(done);
      });
  if (progress) progress->finish();
  check_found(found, search);
  const FoundDivision& best = found.best.front();
  say(fmt::format(
      "--ranks auto: {}; a step is predicted to take {} on {} ({} divisions simulated, "
      "{} too large, {} slower by a bound)\n",
      division_options_text(best), report::format_seconds(best.seconds), cluster.limits.source,
      found.num_simulated, found.num_too_large, found.num_ruled_out));
  return best;
}

}  // namespace

StageOptions started_stages(const TrainOptions& options) {
  const std::string count = env_mpi_size();
  if (count.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--ranks auto: divides a model among the ranks that mpirun or srun has started, "
                "and none has; start it with mpirun -n N, or leave --ranks out");
  }
  StageOptions stages = options.stages;
  stages.ranks = "data=" + count;
  return stages;
}

TrainOptions choose_division(const TrainOptions& given, Comm& comm) {
  check_division_is_open(given.stages, "--ranks auto");
  TrainOptions options = given;
  if (comm.rank() != 0) options.machine.clear();
  LoadSpec spec = read_train_spec(options);
  if (resolve_use_mtp(spec)) spec.mtp = model::UseMtp::kAlways;
  Cluster cluster = find_cluster(options, spec, comm);
  limit_memory(options, cluster);
  FoundDivision found;
  if (comm.rank() == 0) found = search_best(options, spec, cluster, comm.size());
  broadcast(comm, found.stages.ranks);
  broadcast(comm, found.stages.schedule);
  broadcast(comm, found.stages.microbatches);
  broadcast(comm, found.stages.chunks);
  broadcast(comm, found.recompute);
  options = given;
  options.cluster.clear();
  options.stages.ranks = found.stages.ranks;
  options.stages.schedule = found.stages.schedule;
  options.stages.microbatches = found.stages.microbatches;
  options.stages.chunks = found.stages.chunks;
  // With --memory the plan chooses what is recomputed, no slower.
  if (options.memory.empty()) options.recompute = found.recompute;
  return options;
}

}  // namespace strata::apps
