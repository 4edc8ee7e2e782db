// SPDX-License-Identifier: Apache-2.0
// What Runner does where ranks divide the experts: each has gradients of its own ones alone.
#include "base/trace.h"
#include "engine/pipeline/rank_stages.h"
#include "engine/runner.h"
#include "model/expert_ranks.h"

namespace strata::engine {
namespace {

// A rank's experts of what a module has for all of them, [E, ...].
TensorView part_of_rank(const model::LoraModule& module, TensorView of_all,
                        const model::ExpertShare& share, int rank) {
  const model::AxisPart experts = share.experts_of(module.num_experts, rank);
  const int64_t each = of_all.shape.num_elements() / module.num_experts;
  return of_all.part(experts.first * each, {experts.count * each});
}

void exchange_parts(Comm& ranks, const model::LoraModule& module, TensorView of_all) {
  const model::ExpertShare share = {ranks.rank(), ranks.size()};
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank != ranks.rank())
      ranks.send(rank, model::kExpertGradientTag,
                 part_of_rank(module, of_all, share, ranks.rank()));
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank != ranks.rank())
      ranks.receive(rank, model::kExpertGradientTag, part_of_rank(module, of_all, share, rank));
  }
}

}  // namespace

// An adapter's gradients, moments and masters are whole on each rank, which so steps as the others.
void Runner::exchange_expert_gradients(api::AdapterSlot slot) {
  Comm* const ranks = here_->expert_ranks();
  if (ranks == nullptr) return;
  const TraceSpan span("exchange experts' gradients");
  for (const auto& runner : here_->runners()) {
    for (const model::LoraModule& module : runner->engine().adapter(slot).modules()) {
      if (module.num_experts == 0 || module.d_a.empty()) continue;
      exchange_parts(*ranks, module, module.d_a);
      exchange_parts(*ranks, module, module.d_b);
    }
  }
}

}  // namespace strata::engine
