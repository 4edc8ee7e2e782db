// SPDX-License-Identifier: Apache-2.0
#include "engine/pass_workspace.h"

namespace strata::engine {

const PassPlan& PassMeter::measure(FunctionRef<void(Backend&)> pass) {
  counter_->reset_count();
  pass(*counter_);
  plan_.bytes = counter_->scratch().high_water();
  plan_.num_workers = counter_->num_workers();
  plan_.worker_bytes = counter_->worker_high_water();
  plan_.flops = counter_->counted_flops();
  plan_.file_bytes = counter_->file_scratch().high_water();
  const auto copy = [](const Scratch& from, std::vector<Scratch::Use>& to) {
    to.assign(from.peak_uses().begin(), from.peak_uses().end());
  };
  copy(counter_->scratch(), plan_.uses);
  copy(counter_->file_scratch(), plan_.file_uses);
  plan_.held_bytes = held_.high_water();
  copy(held_, plan_.held_uses);
  held_.book(0);
  plan_.deferred_bytes = 0;
  return plan_;
}

const PassPlan& PassMeter::measure_held(FunctionRef<int64_t(Backend&)> pass) {
  int64_t deferred_bytes = 0;
  measure([&](Backend& counter) {
    const Scratch::Mark mark(held_);
    const Scratch::Hold hold(counter.scratch(), held_);
    deferred_bytes = pass(counter);
  });
  plan_.deferred_bytes = deferred_bytes;
  return plan_;
}

void PassBuilder::clear() {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  rows_.clear();
  num_positions_ = 0;
}

void PassBuilder::append(std::span<const int32_t> tokens, int64_t first_position,
                         model::LoraAdapter* adapter, model::SequenceCache kept) {
  const int64_t begin = num_tokens();
  const auto count = static_cast<int64_t>(tokens.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int64_t i = 0; i < count; ++i)
    positions_.push_back(static_cast<int32_t>(first_position + i));
  sequences_.push_back({.begin = begin,
                        .end = begin + count,
                        .first_position = first_position,
                        .adapter = adapter,
                        .kept = kept});
  rows_.add_sequence(count, adapter);
  reach(first_position + count);
}

model::Pass PassBuilder::build(Backend& backend, const model::ModelWeights& weights,
                               model::RopeTables& ropes, const model::CacheLayout& cache) {
  ropes.extend_to(num_positions_);
  lists_.saved.clear();
  return {.backend = backend,
          .weights = weights,
          .ropes = ropes,
          .tokens = tokens_,
          .positions = positions_,
          .sequences = sequences_,
          .rows = rows_,
          .cache = cache,
          .lists = lists_};
}

model::Pass PassBuilder::build_like(const model::Pass& pass) {
  return {.backend = pass.backend,
          .weights = pass.weights,
          .ropes = pass.ropes,
          .tokens = tokens_,
          .positions = positions_,
          .sequences = sequences_,
          .rows = rows_,
          .cache = pass.cache,
          .lists = pass.lists,
          .adapter_gradients = pass.adapter_gradients,
          .base_gradients = pass.base_gradients};
}

}  // namespace strata::engine
