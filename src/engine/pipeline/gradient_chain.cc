// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/gradient_chain.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/trace.h"
#include "ops/elementwise.h"

namespace strata::engine {

void GradientChain::reset_batch_state(std::span<const int> ranks) {
  ranks_.assign(ranks.begin(), ranks.end());
  parts_.resize(static_cast<size_t>(index_of(engine_.model().weights->layers().num_layers())));
  for (Views& views : parts_) views.clear();
  last_blocks_.assign(parts_.size(), -1);
  block_ = 0;
  on_their_way_.assign(static_cast<size_t>(comm_.size()), 0);
  waits_ = may_wait_ && std::ssize(ranks_) <= comm_.size();
  num_taken_ = 0;
  adapters_.clear();
}

void GradientChain::begin_batch(const api::Batch& batch, std::span<const int> ranks) {
  reset_batch_state(ranks);
  has_parameters_ = batch.gradients == api::Gradients::kParameters;
  if (ranks_.empty()) return;
  if (has_parameters_) add_parameter_views();
  add_training_adapters(batch);
  if (batch.mtp_weight == 0.0f) {  // it does not run
    views_of(model::kMtpPart).clear();
    views_of(model::kMtpHeadPart).clear();
  }
  list_parts_in_order();
  has_before_ = has_parameters_ && engine_.base_trainer().has_gradient;
  if (has_before_ && ranks_.front() != comm_.rank()) send_all_owned_rows(ranks_.front());
}

void GradientChain::add_training_adapters(const api::Batch& batch) {
  if (has_parameters_) return;
  for (const api::Sequence& sequence : batch.sequences) {
    model::LoraAdapter* adapter = engine_.slot_adapter(sequence.slot);
    if (!sequence.gradients || adapter == nullptr || !adapter->trains()) continue;
    if (std::find(adapters_.begin(), adapters_.end(), adapter) != adapters_.end()) continue;
    adapters_.push_back(adapter);
    add_adapter_views(*adapter);
  }
}

// Neighbours in a block of memory are one message. Where blocks lie is each rank's own, so that two
// never are, though they may touch.
void GradientChain::append_gradient(int64_t part, TensorView gradient) {
  if (gradient.empty()) return;
  const int64_t count = gradient.shape.num_elements();
  Views& views = views_of(part);
  if (std::exchange(last_blocks_[static_cast<size_t>(index_of(part))], block_) == block_) {
    TensorView& last = views.back();
    if (static_cast<char*>(last.data) + last.num_bytes() == gradient.data) {
      last = TensorView(last.data, DType::kF32, {last.shape.num_elements() + count});
      return;
    }
  }
  views.emplace_back(gradient.data, DType::kF32, Shape{count});
}

int64_t GradientChain::part_of_layer(int64_t layer) const {
  return layer == engine_.model().weights->layers().mtp_layer() ? model::kMtpPart : layer;
}

train::OwnedRows GradientChain::rows_in(int64_t part, const train::Accumulator& sum) const {
  if (sum.added_by != group_.adds) return {};
  const int64_t rows = engine_.base_trainer().resting(sum.index).items()[sum.index].rows;
  if (sum.part != model::kHeadPart) return {.count = part == sum.part ? rows : 0};
  if (part > model::kHeadPart) return {};
  const model::HeadRows of = model::rows_of_head_part(rows, model::kHeadPart - part);
  return {.first = of.first, .count = of.end - of.first};
}

void GradientChain::add_parameter_views() {
  const train::BaseTrainer& trainer = engine_.base_trainer();
  for (const train::Accumulator& sum : trainer.accumulators()) {
    const int64_t cols = trainer.resting(sum.index).items()[sum.index].cols;
    const int64_t num_parts = sum.part == model::kHeadPart ? model::kHeadParts : 1;
    for (int64_t part = sum.part; part > sum.part - num_parts; --part) {
      const train::OwnedRows rows = rows_in(part, sum);
      if (!rows.empty())
        append_gradient(part, sum.working.part(rows.first * cols, {rows.count, cols}));
    }
  }
}

void GradientChain::add_expert_views(const model::LoraAdapter& adapter) {
  ++block_;
  for (const model::LoraModule& module : adapter.modules()) {
    if (module.num_experts == 0 || module.d_a.empty()) continue;
    const model::AxisPart own = engine_.model().weights->own_experts(module.num_experts);
    for (const TensorView& gradient : {module.d_a, module.d_b}) {
      const int64_t each = gradient.shape.num_elements() / module.num_experts;
      append_gradient(part_of_layer(module.spec.layer),
                      gradient.part(own.first * each, {own.count * each}));
    }
  }
}

void GradientChain::add_adapter_views(model::LoraAdapter& adapter) {
  if (group_.is_of_experts()) return add_expert_views(adapter);
  const bool divides_experts = engine_.model().weights->expert_ranks() != nullptr;
  ++block_;
  for (const model::LoraModule& module : adapter.modules()) {
    // The ranks that have an expert alone add to its gradients.
    if (divides_experts && module.num_experts > 0) continue;
    const int64_t outside = module.is_before_layers() ? model::kEmbeddingPart : model::kHeadPart;
    const int64_t part = module.spec.layer < 0 ? outside : part_of_layer(module.spec.layer);
    append_gradient(part, module.d_a);
    append_gradient(part, module.d_b);
  }
  ++block_;
  for (const auto& [target, part] : {std::pair(model::kMtpEmbedding, model::kMtpPart),
                                     std::pair(model::kMtpHead, model::kMtpHeadPart)}) {
    const model::LoraModule* again = adapter.find_module(-1, target);
    if (again == nullptr) continue;
    append_gradient(part, again->d_a);
    append_gradient(part, again->d_b);
  }
  for (const model::LoraModule& module : adapter.modules()) {
    for (size_t p = 1; p < module.target->parts.size(); ++p) {
      const int target = module.target->parts[p].target;
      append_gradient(part_of_layer(module.spec.layer),
                      adapter.find_module(module.spec.layer, target)->d_a);
    }
  }
}

bool GradientChain::is_here(int64_t part) const {
  const model::ModelWeights& weights = *engine_.model().weights;
  if (part >= 0) return weights.part().contains(part);
  return part == model::kEmbeddingPart ? weights.begins() : weights.ends();
}

// In a round ranks have passes in their order.
bool GradientChain::is_told(int from, int to) const { return waits_ && from < to; }

void GradientChain::begin_to_send(int rank) {
  wait_for_receipts(rank, kMostOnTheirWay - 1);
  ++on_their_way_[static_cast<size_t>(rank)];
}

void GradientChain::wait_for_receipts(int rank, int most) {
  int& parts = on_their_way_[static_cast<size_t>(rank)];
  for (; parts > most; --parts) comm_.receive_bytes(rank, kTakenTag, nullptr, 0);
}

void GradientChain::send_to(int rank, int64_t part) {
  for (const TensorView& gradient : views_of(part)) comm_.send(rank, tag_of(part), gradient);
}

void GradientChain::list_parts_in_order() {
  order_.clear();
  const auto add = [&](int64_t part) {
    if (is_here(part) && !views_of(part).empty()) order_.push_back(part);
  };
  for (int64_t i = 0; i < model::kHeadParts; ++i) add(model::kHeadPart - i);
  add(model::kMtpHeadPart);
  add(model::kMtpPart);
  add(model::kFinalNormPart);
  for (int64_t part = std::ssize(parts_) - model::kPartsOutside - 1; part >= 0; --part) add(part);
  add(model::kEmbeddingPart);
}

void GradientChain::receive_from(int rank, int64_t part) {
  const Views& views = views_of(part);
  if (views.empty()) return;
  const TraceSpan span("receive gradients", "part", part);
  for (const TensorView& gradient : views) comm_.receive(rank, tag_of(part), gradient);
}

void GradientChain::forward_part(int64_t part, size_t place) {
  CHECK(place < ranks_.size() && ranks_[place] == comm_.rank(), place, comm_.rank());
  if (views_of(part).empty()) return;
  if (place + 1 < ranks_.size()) {
    const int next = ranks_[place + 1];
    if (is_told(comm_.rank(), next)) begin_to_send(next);
    // What one works on others do too, so it goes to itself as well.
    if (next != comm_.rank() || has_parameters_) send_to(next, part);
    return receive_due_parts(part, place);
  }
  if (has_parameters_) return scatter_to_owners(part);
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (rank != comm_.rank()) send_to(rank, part);
  }
}

// Between two ranks that follow each other two parts are on their way, and the second one works on
// a third: so what is three parts back for each rank up to the last has come. Parts of the head
// may all begin before the first of them ends.
int64_t GradientChain::num_due_parts(int64_t part, size_t place) const {
  const int64_t ahead = ranks_.back() - comm_.rank();
  const bool in_last_round = static_cast<int64_t>(place) + ahead + 1 == std::ssize(ranks_);
  if (!waits_ || ahead <= 0 || !in_last_round) return 0;
  const int64_t index = std::find(order_.begin(), order_.end(), part) - order_.begin();
  const int64_t there = index - (kMostOnTheirWay + 1) * ahead;
  const auto is_of_head = [](int64_t other) { return other <= model::kHeadPart; };
  return there < std::count_if(order_.begin(), order_.end(), is_of_head) ? 0 : there + 1;
}

void GradientChain::receive_due_parts(int64_t part, size_t place) {
  const int64_t due = num_due_parts(part, place);
  while (num_taken_ < due) receive_next();
}

// The next one that the last micro-batch has made.
void GradientChain::receive_next() {
  const int64_t part = order_[static_cast<size_t>(num_taken_++)];
  has_parameters_ ? receive_owned_rows(part) : receive_from(ranks_.back(), part);
}

void GradientChain::begin_part(int64_t part, size_t place) {
  if (place > 0) {
    const int before = ranks_[place - 1];
    if (before == comm_.rank() && !has_parameters_) return;
    receive_from(before, part);
    if (is_told(before, comm_.rank()) && !views_of(part).empty())
      comm_.send_bytes(before, kTakenTag, nullptr, 0);
    return;
  }
  if (!has_parameters_) return;
  if (has_before_) return gather_from_owners(part);
  for (const TensorView& sum : views_of(part)) ops::fill_zero(engine_.backend(), sum);
}

// Calls body with what accumulates in the part, and what each owner, by its rank, has of its rows.
template <typename Body>
void GradientChain::for_each_owned_rows(int64_t part, Body body) {
  if (views_of(part).empty()) return;
  const train::BaseTrainer& trainer = engine_.base_trainer();
  for (const train::Accumulator& sum : trainer.accumulators()) {
    const train::OwnedRows in_part = rows_in(part, sum);
    if (in_part.empty()) continue;
    const int64_t cols = trainer.resting(sum.index).items()[sum.index].cols;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      const int owner = group_.owner_of(rank);
      const train::OwnedRows& owned = trainer.resting(sum.index).rows(owner, sum.index);
      const train::OwnedRows rows = owned.shared_with(in_part);
      if (rows.empty()) continue;
      const Shape shape = {rows.count, cols};
      const TensorView own = rank == comm_.rank()
                                 ? sum.own.part((rows.first - owned.first) * cols, shape)
                                 : TensorView();
      body(rank, sum.working.part(rows.first * cols, shape), own);
    }
  }
}

void GradientChain::send_owned_rows(int rank, int64_t part) {
  if (!is_here(part)) return;
  for_each_owned_rows(part, [&](int owner, TensorView, TensorView own) {
    if (owner == comm_.rank()) comm_.send(rank, tag_of(part), own);
  });
}

void GradientChain::send_all_owned_rows(int rank) {
  for (int64_t part = std::ssize(parts_) - 1; part >= 0; --part)
    send_owned_rows(rank, part - model::kPartsOutside);
}

void GradientChain::gather_from_owners(int64_t part) {
  for_each_owned_rows(part, [&](int owner, TensorView working, TensorView own) {
    if (owner != comm_.rank()) return comm_.receive(owner, tag_of(part), working);
    ops::copy(engine_.backend(), own, working);
  });
}

void GradientChain::scatter_to_owners(int64_t part) {
  for_each_owned_rows(part, [&](int owner, TensorView working, TensorView own) {
    if (owner != comm_.rank()) return comm_.send(owner, tag_of(part), working);
    ops::copy(engine_.backend(), working, own);
  });
}

void GradientChain::receive_owned_rows(int64_t part) {
  for_each_owned_rows(part, [&](int owner, TensorView, TensorView own) {
    if (owner == comm_.rank()) comm_.receive(ranks_.back(), tag_of(part), own);
  });
}

void GradientChain::finish_batch() {
  if (ranks_.empty()) return;
  while (ranks_.back() != comm_.rank() && num_taken_ < std::ssize(order_)) receive_next();
  for (int rank = 0; rank < comm_.size(); ++rank) wait_for_receipts(rank, 0);
  // Also where no micro-batch was this rank's.
  if (has_parameters_) engine_.base_trainer().has_gradient = true;
  for (model::LoraAdapter* adapter : adapters_) adapter->has_gradient = true;
}

}  // namespace strata::engine
