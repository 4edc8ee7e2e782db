// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/gradient_chain.h"

#include <algorithm>

#include "base/check.h"
#include "base/trace.h"
#include "ops/elementwise.h"

namespace strata::engine {

void GradientChain::prepare(const api::Batch& batch, std::span<const int> ranks) {
  ranks_.assign(ranks.begin(), ranks.end());
  parts_.resize(static_cast<size_t>(index_of(engine_.model().weights->layers().num_layers())));
  for (Views& views : parts_) views.clear();
  adapters_.clear();
  has_parameters_ = batch.gradients == api::Gradients::kParameters;
  if (ranks_.empty()) return;
  if (has_parameters_) add_parameters();
  list_adapters(batch);
  if (batch.mtp_weight == 0.0f) views_of(model::kMtpPart).clear();  // it does not run
  has_before_ = has_parameters_ && engine_.base_trainer().has_gradient;
  if (!has_before_ || ranks_.front() == comm_.rank()) return;
  for (int64_t part = std::ssize(parts_) - 1; part >= 0; --part)
    send_own(ranks_.front(), part - model::kPartsOutside);
}

void GradientChain::list_adapters(const api::Batch& batch) {
  if (has_parameters_) return;
  for (const api::Sequence& sequence : batch.sequences) {
    model::LoraAdapter* adapter = engine_.adapter_or_base(sequence.slot);
    if (!sequence.gradients || adapter == nullptr || !adapter->trains()) continue;
    if (std::find(adapters_.begin(), adapters_.end(), adapter) != adapters_.end()) continue;
    adapters_.push_back(adapter);
    add_adapter(*adapter);
  }
}

// Neighbours in memory are one message.
void GradientChain::add(int64_t part, TensorView gradient) {
  if (gradient.empty()) return;
  const int64_t count = gradient.shape.num_elements();
  Views& views = views_of(part);
  if (!views.empty()) {
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

void GradientChain::add_parameters() {
  for (const train::Accumulator& sum : engine_.base_trainer().accumulators())
    add(sum.part, sum.working);
}

void GradientChain::add_adapter(model::LoraAdapter& adapter) {
  for (const model::LoraModule& module : adapter.modules()) {
    const int64_t outside = module.is_embedding() ? model::kEmbeddingPart : model::kHeadPart;
    const int64_t part = module.spec.layer < 0 ? outside : part_of_layer(module.spec.layer);
    add(part, module.d_a);
    add(part, module.d_b);
  }
  for (const int target : {model::kMtpEmbedding, model::kMtpHead}) {
    const model::LoraModule* again = adapter.find(-1, target);
    if (again == nullptr) continue;
    add(model::kMtpPart, again->d_a);
    add(model::kMtpPart, again->d_b);
  }
}

bool GradientChain::is_here(int64_t part) const {
  const model::ModelWeights& weights = *engine_.model().weights;
  if (part >= 0) return weights.part().contains(part);
  return part == model::kEmbeddingPart ? weights.begins() : weights.ends();
}

void GradientChain::send_to(int rank, int64_t part) {
  for (const TensorView& gradient : views_of(part)) comm_.send(rank, tag_of(part), gradient);
}

void GradientChain::receive_from(int rank, int64_t part) {
  const Views& views = views_of(part);
  if (views.empty()) return;
  const TraceSpan span("receive gradients", "part", part);
  for (const TensorView& gradient : views) comm_.receive(rank, tag_of(part), gradient);
}

void GradientChain::send(int64_t part, size_t place) {
  CHECK(place < ranks_.size() && ranks_[place] == comm_.rank(), place, comm_.rank());
  if (place + 1 < ranks_.size()) {
    // What one works on others do too, so it goes to itself as well.
    if (ranks_[place + 1] != comm_.rank() || has_parameters_) send_to(ranks_[place + 1], part);
    return;
  }
  if (has_parameters_) return give_to_owners(part);
  for (int rank = 0; rank < comm_.size(); ++rank) {
    if (rank != comm_.rank()) send_to(rank, part);
  }
}

void GradientChain::receive(int64_t part, size_t place) {
  if (place > 0) {
    if (ranks_[place - 1] != comm_.rank() || has_parameters_) receive_from(ranks_[place - 1], part);
    return;
  }
  if (!has_parameters_) return;
  if (has_before_) return collect(part);
  for (const TensorView& sum : views_of(part)) ops::fill_zero(engine_.backend(), sum);
}

// Calls body with what accumulates in the part, and what each owner has of its rows.
template <typename Body>
void GradientChain::for_accumulators(int64_t part, Body body) {
  if (views_of(part).empty()) return;
  const train::BaseTrainer& trainer = engine_.base_trainer();
  for (const train::Accumulator& sum : trainer.accumulators()) {
    if (sum.part != part) continue;
    const int64_t cols = trainer.ownership().items()[sum.index].cols;
    for (int owner = 0; owner < comm_.size(); ++owner) {
      const train::OwnedRows& rows = trainer.ownership().rows(owner, sum.index);
      if (rows.empty()) continue;
      body(owner, sum.working.part(rows.first * cols, {rows.count, cols}), sum.own);
    }
  }
}

void GradientChain::send_own(int rank, int64_t part) {
  if (!is_here(part)) return;
  for_accumulators(part, [&](int owner, TensorView, TensorView own) {
    if (owner == comm_.rank()) comm_.send(rank, tag_of(part), own);
  });
}

void GradientChain::collect(int64_t part) {
  for_accumulators(part, [&](int owner, TensorView working, TensorView own) {
    if (owner != comm_.rank()) return comm_.receive(owner, tag_of(part), working);
    ops::copy(engine_.backend(), own.reshape(working.shape), working);
  });
}

void GradientChain::give_to_owners(int64_t part) {
  for_accumulators(part, [&](int owner, TensorView working, TensorView own) {
    if (owner != comm_.rank()) return comm_.send(owner, tag_of(part), working);
    ops::copy(engine_.backend(), working, own.reshape(working.shape));
  });
}

void GradientChain::receive_own(int64_t part) {
  for_accumulators(part, [&](int owner, TensorView, TensorView own) {
    if (owner == comm_.rank()) comm_.receive(ranks_.back(), tag_of(part), own);
  });
}

void GradientChain::finish() {
  if (ranks_.empty()) return;
  if (ranks_.back() != comm_.rank()) {
    for (int64_t part = std::ssize(parts_) - 1; part >= 0; --part) {
      const int64_t own = part - model::kPartsOutside;
      if (is_here(own)) has_parameters_ ? receive_own(own) : receive_from(ranks_.back(), own);
    }
  }
  // Also where no micro-batch was this rank's.
  if (has_parameters_) engine_.base_trainer().has_gradient = true;
  for (model::LoraAdapter* adapter : adapters_) adapter->has_gradient = true;
}

}  // namespace strata::engine
