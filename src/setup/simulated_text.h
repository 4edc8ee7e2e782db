// SPDX-License-Identifier: Apache-2.0
// A simulated step as people read it: a table, an object of JSON, a timeline.
#pragma once
#include <boost/json.hpp>
#include <string>

#include "engine/plan/run_plan.h"
#include "schedule/simulate.h"
#include "setup/cluster_file.h"

namespace strata::apps {

// Writes a timeline with a row for each rank.
void write_simulated_trace(const std::string& path, const schedule::Simulation& simulation);
// A row for the ranks of each stage, of which it has the largest numbers.
std::string simulated_table(const engine::RunPlan& plan, const schedule::Simulation& simulation,
                            const Cluster& cluster);
// Adds what was simulated to the plan's object, whose "ranks" are there.
void add_simulated_json(const engine::RunPlan& plan, const schedule::Simulation& simulation,
                        const Cluster& cluster, boost::json::object& line);

}  // namespace strata::apps
