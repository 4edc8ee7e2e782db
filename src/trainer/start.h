// SPDX-License-Identifier: Apache-2.0
// What a run does before its first step, alone or in a sweep (train.cc).
#pragma once
#include <optional>
#include <string>

#include "trainer/job.h"
#include "trainer/loop.h"

namespace strata::apps {

// Whether --out has a state, to be resumed; an Error where it has one and is not. Says so where
// there is none to resume.
bool decide_to_resume(const std::string& out, bool resume);
std::string compute_job_fingerprint(TrainJob& job);
// Makes --out, and loads its state or removes what a run that never saved left there.
void make_folder_and_load_state_or_clear_logs(TrainJob& job, const std::string& fingerprint,
                                              bool resumes);
// That a run of so few steps learns little.
void warn_of_few_steps(const TrainJob& job);
// What will run, and what it will take: the first rank prints it. Probes the machine where no
// limits were given.
std::optional<Predicted> print_plan_and_predict(TrainJob& job, const engine::RunPlan& plan);
// To the system.
void return_free_memory();

}  // namespace strata::apps
