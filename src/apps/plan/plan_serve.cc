// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/plan_serve.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>

#include "apps/plan/plan_json.h"
#include "apps/serve/engine_host.h"
#include "apps/serve/memory.h"
#include "base/error.h"
#include "base/option_values.h"
#include "base/process_memory.h"
#include "model/adapter/specs.h"
#include "planner/plan_text.h"
#include "server/tinker/budget.h"
#include "server/tinker/options/options.h"
#include "setup/engine_setup.h"

namespace strata::apps {
namespace {

// Without --memory four fifths of the machine's.
int64_t server_memory(const PlanOptions& options) {
  if (options.memory.empty()) return read_usable_memory() / 5 * 4;
  return parse_size("memory", options.memory);
}

}  // namespace

int run_plan_serving(const PlanOptions& options) {
  if (options.load_in_4bit) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "plan: --load-in-4bit: of training; to serve a base in 4 bits, strata convert --type "
        "nf4 writes one");
  }
  LoadSpec spec = read_plan_spec(options);
  spec.offload = find_usable_offload_folder(options.offload);
  const int64_t drafts = resolve_draft_tokens(options.speculate, options.draft_tokens);
  if (drafts > 0) spec.mtp = model::UseMtp::kAlways;
  const std::unique_ptr<engine::Engine> engine = make_planning_engine(spec, drafts);
  const int64_t memory = server_memory(options);
  server::ServeOptions requests;
  server::resolve_size_limits(requests, memory);
  const engine::RunPlan plan =
      planner::plan_run({.models = {{.stages = {engine.get()}}},
                         .memory = memory,
                         .max_rank = options.max_rank,
                         .max_sample_rows = HostOptions().max_sample_rows,
                         .requests = request_rows(server::Budget(requests)),
                         .expert_rank = model::parse_expert_rank(options.expert_rank)});
  if (options.json) {
    fmt::print("{}\n", boost::json::serialize(server_plan_json(plan)));
  } else {
    fmt::print("{}", planner::server_text(plan));
  }
  return 0;
}

}  // namespace strata::apps
