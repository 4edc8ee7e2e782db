// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampling_loop.h"

#include "base/trace.h"

namespace strata::engine {

SamplingLoop::SamplingLoop(Stages& stages,
                           const std::vector<std::unique_ptr<PrefixCache>>& prefixes)
    : stages_(&stages) {
  for (size_t i = 0; i < stages.size(); ++i) {
    add_part(stages.sampler(i), stages.sampling(i), prefixes.empty() ? nullptr : prefixes[i].get());
  }
}

size_t SamplingLoop::add(const api::SampleRequest& request) {
  const size_t group = open(request, nullptr);
  const size_t row = add_row(group, request.seed);
  close(group);
  return row;
}

size_t SamplingLoop::open(const api::SampleRequest& request,
                          std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner) {
  return open(std::make_shared<const api::SampleRequest>(request),
              StagedAdapter{std::move(adapter)}, owner);
}

size_t SamplingLoop::open(const std::shared_ptr<const api::SampleRequest>& request,
                          const StagedAdapter& adapter, uint64_t owner,
                          const std::shared_ptr<SampleAnswer>& answer) {
  size_t group = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {  // the first one checks
    group = parts_[i]->book.open(request, adapter.empty() ? nullptr : adapter[i], owner, answer);
  }
  return group;
}

void SamplingLoop::give_weights(size_t group, const StagedAdapter& adapter) {
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->book.give_weights(group, adapter[i]);
}

// What a row ended with is told once.
api::SampleResult SamplingLoop::take(size_t id) {
  for (size_t i = 1; i < parts_.size(); ++i) {
    parts_[i]->book.set_error(id, "");
    static_cast<void>(parts_[i]->book.take(id));
  }
  return book().take(id);
}

std::span<const SampledToken> SamplingLoop::step() {
  if (done()) return {};
  const TraceSpan span("sampling step", "step", parts_[0]->step.num_steps() + 1);
  std::span<const SampledToken> sampled;
  const auto run = [&](size_t stage) {
    Part& part = *parts_[stage];
    part.step.plan(step_tokens_);
    const std::span<const SampledToken> own = part.pass.run();
    if (stage == 0) sampled = own;
  };
  if (stages_ == nullptr) {
    run(0);
  } else {
    stages_->run(run);
  }
  return sampled;
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
