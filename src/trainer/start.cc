// SPDX-License-Identifier: Apache-2.0
// start_run (trainer/start.h).
#include "trainer/start.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/say.h"
#include "setup/model_identity.h"
#include "setup/weight_group.h"
#include "trainer/options.h"
#include "trainer/recipe.h"
#include "trainer/shared_data.h"
#include "trainer/state.h"
#include "trainer/verdict.h"

namespace strata::apps {
namespace {

[[noreturn]] void refuse_to_replace_run(const std::string& out) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "--out: {} holds a run already; continue it with --resume, or choose another folder",
          out));
}

void check_has_no_model(const std::string& out) {
  for (const char* kept : {"config.json", "adapter_config.json"}) {
    if (!file_exists(out + "/" + kept)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--out: {} holds a model or an adapter ({}), which training would "
                            "write over; choose another folder",
                            out, kept));
  }
}

// Whether --out has a state, to be resumed; an Error where it has one and is not. Says so where
// there is none to resume.
bool decide_to_resume(const std::string& out, bool resume) {
  const bool found = has_train_state(out);
  if (found && !resume) refuse_to_replace_run(out);
  // A run that was killed in its first save has begun its metrics.
  const bool begun = resume && file_exists(metrics_path(out));
  if (!found && !begun) check_has_no_model(out);
  if (resume && !found) {
    say(fmt::format("--resume: no saved state in {}; training starts at step 1\n", out));
  }
  return found;
}

void check_sweep(const TrainOptions& o) {
  if (o.method != "lora") {
    throw Error(ErrorCode::kInvalidArgument,
                "--lr: several values train an adapter each, and --method full has none; give one");
  }
  if (o.stages.stages > 1 || o.stages.chunks > 1) {
    throw Error(ErrorCode::kUnsupported,
                "--lr and --stages: several learning rates are not run in stages yet; give one");
  }
}

// What ranks that are processes cannot do yet.
void check_rank_options(const TrainOptions& o) {
  check_memory_of_ranks(o.memory, o.offload);
  if (o.sweep.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              "--ranks and several values of --lr: give one, or leave out --ranks");
}

// Which a plan weighs work by, as the first rank's --machine has them.
void broadcast_limits(Comm& comm, std::optional<engine::MachineLimits>& limits) {
  bool is_known = limits.has_value();
  broadcast(comm, is_known);
  if (!is_known) return;
  if (!limits) limits.emplace();
  for (double* limit : {&limits->flops, &limits->f32_flops, &limits->bytes, &limits->file_bytes})
    broadcast(comm, *limit);
  broadcast(comm, limits->source);
}

// And an adapter to start from, and a schedule in a file.
RankFacts collect_facts_of_run(const LoadSpec& spec, TrainOptions options) {
  RankFacts facts = collect_rank_facts(spec, option_table_of(options));
  facts.emplace_back("--adapter (hash)",
                     options.adapter.empty() ? "none" : hash_adapter_or_model(options.adapter));
  add_schedule_hash(options.stages, facts);
  return facts;
}

// The same of every process, with the limits of the machine that the first one has read.
LoadSpec read_spec_of_ranks(const ProcessGroup& group, const TrainOptions& given) {
  check_rank_options(given);
  TrainOptions options = given;
  if (group.comm.rank() != 0) options.machine.clear();
  LoadSpec spec = read_train_spec(options);
  check_layout(group.layout, spec.parsed.config);
  check_optimizer_of_ranks(group.layout, given.optimizer);
  check_ranks_alike(group.comm, collect_facts_of_run(spec, options));
  broadcast_limits(group.comm, spec.limits);
  // Before any data are read.
  static_cast<void>(
      plan_division(spec.parsed.config, stages_with_layout(given.stages, group.layout), spec));
  return spec;
}

// What --out holds of a job.
struct SavedRun {
  std::string rate, out;
  bool resumes = false;
  std::string recorded = {};  // options, of the run that goes on
};

std::vector<SavedRun> folders_of_jobs(const TrainOptions& options) {
  if (options.sweep.empty()) return {{.rate = "", .out = options.out}};
  std::vector<SavedRun> runs;
  for (const std::string& rate : options.sweep)
    runs.push_back({.rate = rate, .out = fmt::format("{}/lr-{}", options.out, rate)});
  return runs;
}

void find_saved_state(const TrainOptions& options, SavedRun& run) {
  run.resumes = decide_to_resume(run.out, options.resume);
  if (run.resumes) run.recorded = read_recorded_options(run.out);
}

JobStart resolve_job(const TrainOptions& options, const LoadSpec& spec, const TrainData& data,
                     const StageOptions& stages, const SavedRun& saved) {
  JobStart job = {.rate = saved.rate,
                  .settings = resolve_settings(options, spec, data, saved.recorded),
                  .resumes = saved.resumes};
  job.settings.stages = stages;
  if (job.rate.empty()) return job;
  std::from_chars(job.rate.data(), job.rate.data() + job.rate.size(), job.settings.lr);
  job.settings.out = saved.out;
  if (!job.settings.tensorboard.empty()) job.settings.tensorboard += "/lr-" + job.rate;
  return job;
}

// Each once, of those that begin.
void warn_of_doubts(const std::vector<JobStart>& jobs, const TrainData& data) {
  std::set<std::string> said;
  for (const JobStart& job : jobs) {
    if (job.resumes) continue;
    for (const std::string& doubt : doubts_about(job.settings, data)) {
      if (said.insert(doubt).second) log(LogLevel::kWarning, doubt);
    }
  }
}

}  // namespace

RunStart start_run(const TrainOptions& options, const ProcessGroup* group) {
  if (!options.sweep.empty()) check_sweep(options);
  const LoadSpec spec = group ? read_spec_of_ranks(*group, options) : read_train_spec(options);
  const bool is_first = group == nullptr || group->comm.rank() == 0;
  if (is_first && !options.save_config.empty()) save_recipe(options);
  std::vector<SavedRun> saved = folders_of_jobs(options);
  TrainData data;
  if (is_first) {
    for (SavedRun& run : saved) find_saved_state(options, run);
    data = read_train_data(options, spec);
  }
  StageOptions stages = options.stages;
  if (group != nullptr) {
    broadcast(group->comm, saved.front().resumes);
    broadcast(group->comm, saved.front().recorded);
    broadcast_data(group->comm, data);
    stages = stages_with_layout(stages, group->layout);
    if (options.method != "full") choose_weight_sharers(group->comm, stages);
  }
  std::vector<JobStart> jobs;
  for (const SavedRun& run : saved) jobs.push_back(resolve_job(options, spec, data, stages, run));
  if (is_first) warn_of_doubts(jobs, data);
  const int ranks_here = group == nullptr ? 1 : group->comm.ranks_here() * stages.ranks_each;
  TrainRun run = plan_train_run(spec, jobs.front().settings, data, ranks_here);
  return {.run = std::move(run), .data = std::move(data), .jobs = std::move(jobs)};
}

}  // namespace strata::apps
