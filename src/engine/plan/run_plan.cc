// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/run_plan.h"

#include <algorithm>

#include "base/check.h"

namespace strata::engine {

std::vector<int64_t> RunPlan::bytes_of_ranks() const {
  const auto ranks = static_cast<int64_t>(pipeline.num_ranks());
  if (ranks == 1) return {memory.total()};
  const int64_t gathered = memory.bytes_of(MemoryUse::kGathered);  // by the first one
  std::vector<int64_t> bytes(static_cast<size_t>(ranks));
  int64_t others = memory.total() - gathered;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    bytes[static_cast<size_t>(pipeline.ranks[stage])] += stages[stage].total();
    others -= stages[stage].total();
  }
  for (int64_t& of_rank : bytes) of_rank += others / ranks;
  bytes.front() += gathered;
  return bytes;
}

double step_seconds(const RunPlan& plan, const MachineLimits& limits) {
  double busiest = 0.0;
  for (const Work& work : plan.work) busiest = std::max(busiest, seconds_of(work, limits));
  return busiest * static_cast<double>(plan.work.size()) / (1.0 - plan.bubbles);
}

}  // namespace strata::engine
