// SPDX-License-Identifier: Apache-2.0
// Plans as people read them: rows and tables.
#pragma once
#include <string>

#include "planner/staged_plan.h"
#include "planner/train_plan.h"
#include "report/table.h"

namespace strata::planner {

// "1.9 GiB: weights 1.11 GiB, ..."
std::string memory_text(const engine::MemoryPlan& plan);
// "4.1 s, predicted from ..."
std::string time_text(const TrainPlan& plan, const engine::MachineLimits& limits);
// What is in files there, and how often it moves; empty where nothing does.
std::string file_text(const TrainPlan& plan, const std::string& folder);
// A table of the activations of a pass: what is kept of each and what the rest costs.
std::string activations_text(const TrainPlan& plan);

// Rows of the printed plan: stages, memory, files, time. `limits` of all ranks' threads together.
void add_rows(const StagedPlan& plan, const engine::MachineLimits& limits,
              const std::string& folder, report::Table& table);
// A table of what each stage takes.
std::string stages_table(const StagedPlan& plan);

}  // namespace strata::planner
