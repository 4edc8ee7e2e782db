// SPDX-License-Identifier: Apache-2.0
// Plans as `strata plan --json` prints them.
#pragma once
#include <boost/json.hpp>
#include <vector>

#include "engine/engine.h"
#include "engine/pipeline/sent_plan.h"
#include "engine/plan/run_plan.h"

namespace strata::apps {

// The plan of training, in stages or not.
boost::json::object run_plan_json(const engine::RunPlan& plan, bool in_stages,
                                  const engine::Engine& engine,
                                  const engine::MachineLimits& limits);
// What each rank takes, of which so many have the same stages.
boost::json::array ranks_json(const engine::RunPlan& plan,
                              const std::vector<engine::SentBytes>& sent, int num_pipelines);
boost::json::object server_plan_json(const engine::RunPlan& plan);

}  // namespace strata::apps
