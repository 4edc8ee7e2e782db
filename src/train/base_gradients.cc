// SPDX-License-Identifier: Apache-2.0
// What BaseTrainer does with gradients: what passes accumulate, where, and what of it rests with
// which owner.
#include <algorithm>
#include <map>
#include <utility>

#include "model/expert_ranks.h"
#include "model/pass/gradient_turns.h"
#include "train/optimizer.h"

namespace strata::train {
namespace {

int64_t gradient_part_of(const model::ModelWeights& weights, size_t index) {
  const int64_t layer = weights.table()[index].layer;
  if (weights.is_behind_mtp_layer(index)) return model::kMtpHeadPart;
  if (layer >= 0) return layer == weights.layers().mtp_layer() ? model::kMtpPart : layer;
  if (weights.is_before_layers(index)) return model::kEmbeddingPart;
  return index == weights.head_index() ? model::kHeadPart : model::kFinalNormPart;
}

// The parameter's shape where all of its rows are owned.
Shape shape_of(const Ownership& ownership, int owner, size_t index,
               const model::Parameter& parameter) {
  if (!ownership.is_divided(owner, index)) return parameter.shape;
  return {ownership.rows(owner, index).count, parameter.num_cols()};
}

}  // namespace

void BaseTrainer::divide_gradients() {
  const std::vector<model::Parameter>& table = weights_.table();
  ownership_ = divide_parameters(
      weights_, how_, share_.num_owners, weights_.tensor_share(), [&](size_t index) {
        return (table[index].held || is_of_divided_expert(index)) && !is_borrowed(index);
      });
  borrowed_ = divide_borrowed_embedding(weights_, share_.num_owners, weights_.tensor_share());
  num_owned_ = ownership_.num_values(share_.owner);
  grad_memory_ = Memory(allocator_, num_owned_ * dtype_bytes(DType::kF32));
  grads_ = TensorView(grad_memory_.data(), DType::kF32, {num_owned_});
  owned_gradients_ = owned_views(grads_);
  gradients_.d_weight = owned_gradients_;
  list_parameters_as_accumulators();
  add_second_uses();
  if (share_.num_owners > 1) allocate_working_gradients();
}

bool BaseTrainer::is_of_divided_expert(size_t index) const {
  const model::Parameter& parameter = weights_.table()[index];
  return share_.num_owners > 1 && weights_.expert_ranks() != nullptr && parameter.expert >= 0 &&
         weights_.holds_layer(parameter.layer);
}

AddedBy BaseTrainer::who_adds_to(size_t index) const {
  if (!is_of_divided_expert(index)) return AddedBy::kDealing;
  const int num_ranks = weights_.expert_ranks()->share().num_ranks;
  return share_.num_owners > num_ranks ? AddedBy::kExpertCopies : AddedBy::kOne;
}

void BaseTrainer::list_parameters_as_accumulators() {
  accumulators_.clear();
  for (size_t index = 0; index < weights_.table().size(); ++index) {
    if (!weights_.table()[index].trains() || is_borrowed(index)) continue;
    const TensorView& own = owned_gradients_[index];
    accumulators_.push_back(
        {gradient_part_of(weights_, index), index, own, own, who_adds_to(index)});
  }
}

void BaseTrainer::add_second_uses() {
  second_memory_.clear();
  second_uses_.clear();
  first_second_use_ = accumulators_.size();
  if (!weights_.ends()) return;
  const size_t embedding = weights_.embedding_index(), head = weights_.head_index();
  const bool mtp = weights_.layers().mtp_layer().has_value();
  if (head == embedding) add_second_use(gradients_.d_tied_head, model::kHeadPart, embedding);
  if (mtp) add_second_use(gradients_.d_mtp_embedding, model::kMtpPart, embedding);
  if (mtp) add_second_use(gradients_.d_mtp_head, model::kMtpHeadPart, head);
}

void BaseTrainer::add_second_use(TensorView& view, int64_t part, size_t index) {
  const Ownership& owners = resting(index);
  const int64_t values = owners.num_values(share_.owner, index);
  TensorView own;
  if (values > 0) {
    second_memory_.emplace_back(allocator_, values * dtype_bytes(DType::kF32));
    own = TensorView(second_memory_.back().data(), DType::kF32,
                     shape_of(owners, share_.owner, index, weights_.table()[index]));
  }
  view = own;
  second_uses_.push_back(&view);
  accumulators_.push_back({part, index, own, own});
}

int64_t BaseTrainer::most_values_of_a_part() const {
  std::map<std::pair<int64_t, AddedBy>, int64_t> values;
  int64_t most = 0;
  for (const Accumulator& a : accumulators_) {
    if (a.stays()) continue;
    int64_t& of_part = values[{a.part, a.added_by}];
    most = std::max(most, of_part += weights_.table()[a.index].shape.num_elements());
  }
  return most;
}

// Parts take turns, and so do a layer's experts and all else of it, so that each begins where the
// others do.
void BaseTrainer::allocate_working_gradients() {
  const int64_t most = most_values_of_a_part();
  working_memory_ = Memory(allocator_, most * dtype_bytes(DType::kF32));
  const TensorView working(working_memory_.data(), DType::kF32, {most});
  std::map<std::pair<int64_t, AddedBy>, int64_t> values;  // of each part
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    Accumulator& a = accumulators_[i];
    if (a.stays()) continue;
    const Shape& shape = weights_.table()[a.index].shape;
    int64_t& of_part = values[{a.part, a.added_by}];
    a.working = working.part(of_part, shape);
    of_part += shape.num_elements();
    const bool is_second = i >= first_second_use_;
    (is_second ? *second_uses_[i - first_second_use_] : gradients_.d_weight[a.index]) = a.working;
  }
}

std::vector<TensorView> BaseTrainer::owned_views(TensorView flat) const {
  std::vector<TensorView> out;
  int64_t offset = 0;
  for (size_t index = 0; index < weights_.table().size(); ++index) {
    const int64_t values = ownership_.num_values(share_.owner, index);
    if (own_rows(index).empty()) {
      out.emplace_back();
      continue;
    }
    out.push_back(
        flat.part(offset, shape_of(ownership_, share_.owner, index, weights_.table()[index])));
    offset += values;
  }
  return out;
}

}  // namespace strata::train
