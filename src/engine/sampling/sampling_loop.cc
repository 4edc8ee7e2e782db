// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampling_loop.h"

#include "base/trace.h"

namespace strata::engine {

size_t SamplingLoop::add(const api::SampleRequest& request) {
  const size_t group = open(request, nullptr);
  const size_t row = add_row(group, request.seed);
  close(group);
  return row;
}

std::span<const SampledToken> SamplingLoop::step() {
  if (done()) return {};
  const TraceSpan span("sampling step", "step", step_.num_steps() + 1);
  step_.plan(step_tokens_);
  return pass_.run();
}

std::vector<api::SampleResult> sample(Runner& runner,
                                      const std::vector<api::SampleRequest>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) runner.engine().check(requests[i], i);
  SamplingLoop loop(runner);
  std::vector<size_t> ids;
  for (const api::SampleRequest& request : requests) ids.push_back(loop.add(request));
  while (!loop.done()) loop.step();
  std::vector<api::SampleResult> results;
  for (const size_t id : ids) results.push_back(loop.take(id));
  return results;
}

}  // namespace strata::engine
