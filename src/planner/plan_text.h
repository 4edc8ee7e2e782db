// SPDX-License-Identifier: Apache-2.0
// Plans as people read them: rows and tables.
#pragma once
#include <string>

#include "backend/backend.h"
#include "engine/plan/run_plan.h"
#include "report/table.h"

namespace strata::planner {

// Rows of the printed plan of what trains: stages, memory, files, time. `limits` of all ranks'
// threads together.
void add_plan_rows(const engine::RunPlan& plan, const engine::MachineLimits& limits,
                   const std::string& folder, report::Table& table);
// What runs it, of which each rank has one.
std::string machine_text(const engine::RunPlan& plan, const Backend& backend);
// A table of the activations of a pass: what is kept of each and what the rest costs; in stages of
// what each takes.
std::string parts_text(const engine::RunPlan& plan);

// A table of what a server has, and a line that says what fits.
std::string server_text(const engine::RunPlan& plan);

}  // namespace strata::planner
