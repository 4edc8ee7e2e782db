// SPDX-License-Identifier: Apache-2.0
#include "apps/export/perplexity.h"

#include <cmath>
#include <vector>

#include "backend/thread_comm.h"
#include "setup/scoring.h"
#include "setup/stages.h"

namespace strata::apps {
namespace {

constexpr int64_t kPassTokens = 2048;

}  // namespace

double measure_perplexity(const LoadSpec& spec, const std::string& adapter,
                          const data::Dataset& data) {
  const engine::RunPlan plan = {.pipeline = plan_stages(spec, {})};
  double loss = 0;
  run_ranks(1, [&](Comm& comm) {
    const auto pipeline = load_runner(comm, plan, spec, {.pass_tokens = kPassTokens});
    const std::vector<api::AdapterSlot> slots = {adapter.empty() ? api::AdapterSlot::kBase
                                                                 : pipeline->load_adapter(adapter)};
    loss = score_dataset(*pipeline, slots, data, kPassTokens, WantTop::kNo)[0].total.loss();
  });
  return std::exp(loss);
}

}  // namespace strata::apps
