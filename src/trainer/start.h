// SPDX-License-Identifier: Apache-2.0
// What a run does before its first step, alone, as one of ranks that are processes, or in a sweep:
// start_run() reads, checks and plans, and the rest is done with a job.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "setup/ranks.h"
#include "trainer/job.h"
#include "trainer/loop.h"

namespace strata::apps {

// What a run that was asked to stop says.
constexpr const char* kStopNotice = "saving after this step; again: ends at once";

// What a job is made of.
struct JobStart {
  std::string rate;  // of a sweep, as it was typed
  TrainSettings settings;
  bool resumes = false;
};

// All that is known of a run before its model is loaded.
struct RunStart {
  TrainRun run;
  TrainData data;
  std::vector<JobStart> jobs;  // one, or of a sweep one for each learning rate
};

// Processes that run together, and how they divide the model.
struct ProcessGroup {
  Comm& comm;
  const schedule::ParallelLayout& layout;
};

// From options, which outlive what it returns, to jobs. Of several processes the first one reads
// what --out, --data and --eval name, and all get it. `group` is null where there is one alone.
// Throws Error for every fault of options and files.
RunStart start_run(const TrainOptions& options, const ProcessGroup* group);

std::string compute_job_fingerprint(TrainJob& job);
// Makes --out, and loads its state or removes what a run that never saved left there.
void prepare_output(TrainJob& job, const std::string& fingerprint, bool resumes);
// What will run, and what it will take: the first rank prints it. Probes the machine where no
// limits were given.
std::optional<Predicted> announce_plan(TrainJob& job, const engine::RunPlan& plan);
// To the system.
void return_free_memory();

}  // namespace strata::apps
