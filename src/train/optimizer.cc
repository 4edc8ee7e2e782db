// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/expert_ranks.h"
#include "ops/adamw.h"
#include "ops/add_squares.h"
#include "ops/elementwise.h"
#include "ops/router.h"

namespace strata::train {
namespace {

ops::AdamWArgs adamw_args(const api::AdamW& adamw, double grad_norm, int64_t step) {
  const bool clip = adamw.grad_clip_norm > 0.0 && grad_norm > adamw.grad_clip_norm;
  return {.lr = adamw.lr,
          .beta1 = adamw.beta1,
          .beta2 = adamw.beta2,
          .eps = adamw.eps,
          .weight_decay = adamw.weight_decay,
          .grad_scale = clip ? adamw.grad_clip_norm / grad_norm : 1.0,
          .step = step};
}

[[noreturn]] void throw_not_finite(double norm) {
  throw NotFinite(
      fmt::format("optim_step: the gradient's norm is {}, want a finite number; the gradient is "
                  "dropped, weights and moments stay as they were; logprobs or weights out of "
                  "proportion?",
                  norm));
}

}  // namespace

api::StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter,
                             const api::AdamW& adamw) {
  if (!adapter.trains() || !adapter.has_gradient)
    return {.stepped = false, .grad_norm = 0.0, .step = adapter.step};
  adapter.merge_gradients_apart(backend);
  return step_adapter(backend, adapter, adamw,
                      std::sqrt(ops::sum_of_squares(backend, adapter.gradient_parts())));
}

void add_grad_squares(Backend& backend, const model::LoraAdapter& adapter, std::span<double> sums) {
  CHECK(sums.size() == 2 * adapter.modules().size(), sums.size());
  for (const model::LoraModule& module : adapter.modules()) {
    for (const TensorView& gradient : {module.d_a, module.d_b}) {
      if (!gradient.empty() && !module.is_copy) {
        sums.front() += ops::sum_of_squares(backend, gradient);
      }
      sums = sums.subspan(1);
    }
  }
}

api::StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter, const api::AdamW& adamw,
                             double norm) {
  if (!std::isfinite(norm)) {
    ops::fill_zero(backend, adapter.gradients());
    adapter.has_gradient = false;
    throw_not_finite(norm);
  }
  ++adapter.step;
  ops::adamw_fused(backend, adamw_args(adamw, norm, adapter.step), adapter.step_items());
  adapter.has_gradient = false;
  return {.stepped = true, .grad_norm = norm, .step = adapter.step};
}

namespace {

// A matrix that is neither embedding nor head. Biases and gates of two axes are drawn as constants.
bool is_stepped_by_muon(const model::ModelWeights& weights, const BaseStep& how, size_t index) {
  const model::Parameter& parameter = weights.table()[index];
  return how.muon && parameter.shape.rank() == 2 && !parameter.buffer &&
         index != weights.embedding_index() && index != weights.head_index() &&
         (parameter.is_matrix() || parameter.draw == model::ParamDraw::kNormal);
}

void check_not_narrow(const model::ModelWeights& weights) {
  if (weights.forms().empty()) return;
  throw Error(ErrorCode::kUnsupported,
              "base parameters that are kept in 4 to 8 bits cannot train; load them with "
              "--weights bf16");
}

}  // namespace

Ownership divide_parameters(const model::ModelWeights& weights, const BaseStep& how, int num_owners,
                            const model::TensorShare& share,
                            FunctionRef<bool(size_t index)> is_held) {
  std::vector<Ownership::Item> items;
  for (size_t index = 0; index < weights.table().size(); ++index) {
    const model::Parameter& parameter = weights.table()[index];
    if (parameter.buffer || !is_held(index)) {
      items.emplace_back();
      continue;
    }
    items.push_back({.rows = parameter.num_rows_of(share),
                     .cols = parameter.num_cols(),
                     .whole = is_stepped_by_muon(weights, how, index)});
    if (num_owners == 1 || parameter.expert < 0 || weights.expert_ranks() == nullptr) continue;
    const model::ExpertShare& experts = weights.expert_ranks()->share();
    items.back().first_owner = experts.rank_of(parameter.expert, parameter.row->num_experts);
    items.back().stride = experts.num_ranks;
  }
  return {items, num_owners};
}

Ownership divide_borrowed_embedding(const model::ModelWeights& weights, int num_owners,
                                    const model::TensorShare& share) {
  std::vector<Ownership::Item> items(weights.table().size());
  const model::Parameter& embedding = weights.table()[weights.embedding_index()];
  items[weights.embedding_index()] = {.rows = embedding.num_rows_of(share),
                                      .cols = embedding.num_cols()};
  return {items, num_owners};
}

int num_borrowed_uses(const model::ModelConfig& config) {
  const int tied = config.tie_word_embeddings ? 1 : 0, mtp = config.use_mtp ? 1 : 0;
  return tied + mtp + tied * mtp;
}

BaseTrainer::BaseTrainer(const Backend& backend, const model::ModelWeights& weights, Share share)
    : allocator_(backend.allocator()), weights_(weights), share_(share) {
  divide_gradients();
}

bool BaseTrainer::is_for_muon(size_t index) const {
  return is_stepped_by_muon(weights_, how_, index);
}

void BaseTrainer::enable_steps(FunctionRef<void(size_t, int64_t, TensorView)> read,
                               const BaseStep& how) {
  if (steps_enabled_) return;
  check_not_narrow(weights_);
  how_ = how;
  if (how.muon && share_.num_owners > 1) {
    CHECK(!has_gradient);
    divide_gradients();  // of matrices as a whole
  }
  allocate_masters_and_moments();
  allocate_expert_loads();
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (!masters_[index].empty()) read(index, own_rows(index).first, masters_[index]);
  }
  steps_enabled_ = true;
}

int64_t BaseTrainer::num_owned_second_moments() const {
  int64_t values = 0;
  for (size_t index = 0; index < weights_.table().size(); ++index) {
    if (!is_for_muon(index)) values += ownership_.num_values(share_.owner, index);
  }
  return values;
}

void BaseTrainer::allocate_masters_and_moments() {
  const int64_t num_second = num_owned_second_moments();
  const int64_t bytes = Arena::aligned(num_owned_ * dtype_bytes(DType::kF32));
  if (!how_.folder.empty()) files_ = std::make_unique<FileAllocator>(how_.folder);
  step_memory_ =
      Memory(files_ ? *files_ : allocator_, 2 * bytes + num_second * dtype_bytes(DType::kF32));
  char* base = static_cast<char*>(step_memory_.data());
  params_ = TensorView(base, DType::kF32, {num_owned_});
  m_ = TensorView(base + bytes, DType::kF32, {num_owned_});
  v_ = TensorView(base + 2 * bytes, DType::kF32, {num_second});
  masters_ = owned_views(params_);
  firsts_ = owned_views(m_);
  seconds_ = second_moment_views(v_);
}

std::vector<TensorView> BaseTrainer::second_moment_views(TensorView flat) const {
  std::vector<TensorView> views(firsts_.size());
  int64_t offset = 0;
  for (size_t index = 0; index < views.size(); ++index) {
    if (firsts_[index].empty() || is_for_muon(index)) continue;
    views[index] = flat.part(offset, firsts_[index].shape);
    offset += firsts_[index].shape.num_elements();
  }
  return views;
}

void BaseTrainer::allocate_expert_loads() {
  const bool balances = how_.router_bias_rate != 0.0;
  gradients_.expert_loads.assign(balances ? weights_.table().size() : 0, {});
  for (const size_t index : router_bias_indices()) {
    const model::Parameter& parameter = weights_.table()[index];
    if (!parameter.held) continue;
    gradients_.expert_loads[index].resize(static_cast<size_t>(parameter.shape[0]));
  }
}

int64_t BaseTrainer::num_bytes() const {
  int64_t bytes = state_bytes() + num_owned_ * dtype_bytes(DType::kF32);
  for (const Memory& memory : second_memory_) bytes += memory.size();
  return bytes + working_memory_.size();
}

void BaseTrainer::finish_gradients(Backend& backend) {
  for (const Accumulator& apart : second_uses()) {
    if (apart.own.empty()) continue;
    if (!is_borrowed(apart.index)) ops::add_into(backend, apart.own, owned_gradients_[apart.index]);
    ops::fill_zero(backend, apart.own);
  }
}

api::StepResult BaseTrainer::step(Backend& backend, model::ModelWeights& weights,
                                  const api::AdamW& adamw) {
  CHECK(steps_enabled_);
  if (!has_gradient) return {.stepped = false, .grad_norm = 0.0, .step = num_steps};
  finish_gradients(backend);
  double squares = 0.0;  // parameters in the table's order
  for (const TensorView& gradient : owned_gradients_) {
    if (!gradient.empty()) squares += ops::sum_of_squares(backend, gradient);
  }
  return step(backend, weights, adamw, std::sqrt(squares));
}

void BaseTrainer::add_grad_squares(Backend& backend, std::span<double> sums) const {
  CHECK(sums.size() == owned_gradients_.size(), sums.size());
  for (size_t index = 0; index < sums.size(); ++index) {
    if (!owned_gradients_[index].empty())
      sums[index] = add_grad_squares(backend, index, sums[index]);
  }
}

double BaseTrainer::add_grad_squares(Backend& backend, size_t index, double sum) const {
  const model::Parameter& parameter = weights_.table()[index];
  const model::TensorShare share = weights_.tensor_share();
  const TensorView& gradient = owned_gradients_[index];
  if (parameter.own_rows_of(share).count == 0) return sum;
  const int64_t copies = parameter.num_lead_rows_of(share) - own_rows(index).first;
  if (copies <= 0) return ops::add_squares(backend, gradient, sum);
  if (copies >= gradient.rows()) return sum;
  return ops::add_squares(backend, gradient.slice_rows(copies, gradient.rows()), sum);
}

struct BaseTrainer::StepArgs {
  ops::AdamWArgs adamw;
  MuonArgs muon;
};

BaseTrainer::StepArgs BaseTrainer::step_args(const api::AdamW& adamw, double norm) const {
  const ops::AdamWArgs args = adamw_args(adamw, norm, num_steps);
  return {.adamw = args,
          .muon = {.lr = adamw.lr,
                   .momentum = how_.muon_momentum,
                   .weight_decay = adamw.weight_decay,
                   .grad_scale = args.grad_scale}};
}

api::StepResult BaseTrainer::step(Backend& backend, model::ModelWeights& weights,
                                  const api::AdamW& adamw, double norm) {
  CHECK(steps_enabled_);
  if (!std::isfinite(norm)) {
    zero_gradients(backend);
    throw_not_finite(norm);
  }
  ++num_steps;
  const StepArgs args = step_args(adamw, norm);
  if (in_files()) {
    step_in_files(backend, weights, args);
  } else if (how_.muon) {
    for (size_t index = 0; index < masters_.size(); ++index) step_parameter(backend, args, index);
  } else {
    ops::adamw(backend, args.adamw, grads_, params_, m_, v_);
  }
  balance_routers(backend);
  zero_gradients(backend);
  if (!in_files()) refresh_weights(backend, weights);
  return {.stepped = true, .grad_norm = norm, .step = num_steps};
}

bool BaseTrainer::follows_loads(size_t index) const {
  const model::Parameter& parameter = weights_.table()[index];
  return how_.router_bias_rate != 0.0 && parameter.row != nullptr && parameter.row->balances;
}

std::vector<size_t> BaseTrainer::router_bias_indices() const {
  std::vector<size_t> biases;
  for (size_t index = 0; index < weights_.table().size(); ++index) {
    if (follows_loads(index)) biases.push_back(index);
  }
  return biases;
}

// Buffers have no masters: the weights' own values move.
void BaseTrainer::balance_routers(Backend& backend) {
  for (size_t index = 0; index < gradients_.expert_loads.size(); ++index) {
    const std::vector<int64_t>& loads = gradients_.expert_loads[index];
    if (loads.empty()) continue;
    ops::balance_bias(backend, loads, how_.router_bias_rate, weights_.table()[index].values);
  }
}

void BaseTrainer::step_parameter(Backend& backend, const StepArgs& args, size_t index) {
  const TensorView& p = masters_[index];
  if (p.empty()) return;
  if (is_for_muon(index)) return step_by_muon(backend, args.muon, index);
  const Shape flat = {p.shape.num_elements()};
  ops::adamw(backend, args.adamw, owned_gradients_[index].reshape(flat), p.reshape(flat),
             firsts_[index].reshape(flat), seconds_[index].reshape(flat));
}

std::vector<PageRange> BaseTrainer::pages_of(size_t index) const {
  std::vector<PageRange> pages;
  for (const TensorView& state : {masters_[index], firsts_[index], seconds_[index]}) {
    if (!state.empty()) pages.push_back({state.data, state.num_bytes()});
  }
  return pages;
}

// A parameter's state is read while the one before it is stepped, and is there when products' copy
// of it is written; then it leaves.
void BaseTrainer::step_in_files(Backend& backend, model::ModelWeights& weights,
                                const StepArgs& args) {
  if (!queue_) queue_ = backend.page_queue("masters' files", *files_);
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (index + 1 < masters_.size()) queue_->read_ahead(pages_of(index + 1));
    if (masters_[index].empty()) continue;
    step_parameter(backend, args, index);
    if (!weights.divides(index))
      weights.write_rows(backend, index, own_rows(index).first, masters_[index]);
    queue_->write_behind(pages_of(index));
  }
}

// Rows that are read in one kind of block are matrices of their own: a grouped projection's.
int64_t BaseTrainer::muon_rows(size_t index) const {
  const model::Parameter& parameter = weights_.table()[index];
  const model::RowBlocks& blocks = parameter.blocks;
  return blocks.second == 0 && blocks.first > 0 ? blocks.first : parameter.shape[0];
}

void BaseTrainer::step_by_muon(Backend& backend, const MuonArgs& args, size_t index) {
  const TensorView& p = masters_[index];
  const Shape shape = {muon_rows(index), p.cols()};
  for (int64_t first = 0; first < p.rows(); first += shape[0]) {
    const int64_t offset = first * p.cols();
    muon_step(backend, args, owned_gradients_[index].part(offset, shape), p.part(offset, shape),
              firsts_[index].part(offset, shape));
  }
}

void BaseTrainer::count_step_scratch(Backend& counter) {
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (masters_[index].empty() || !is_for_muon(index)) continue;
    const TensorView part = masters_[index].part(0, {muon_rows(index), masters_[index].cols()});
    muon_step(counter, {}, part, part, part);
  }
}

void BaseTrainer::zero_gradients(Backend& backend) {
  ops::fill_zero(backend, grads_);
  for (const Accumulator& apart : second_uses()) {
    if (!apart.own.empty()) ops::fill_zero(backend, apart.own);
  }
  for (std::vector<int64_t>& loads : gradients_.expert_loads)
    std::fill(loads.begin(), loads.end(), 0);
  has_gradient = false;
}

void BaseTrainer::refresh_weights(Backend& backend, model::ModelWeights& weights) const {
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (!masters_[index].empty() && !weights.divides(index))
      weights.write_rows(backend, index, own_rows(index).first, masters_[index]);
  }
}

}  // namespace strata::train
