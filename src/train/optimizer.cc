// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/adamw.h"
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
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("optim_step: the gradient's norm is {}, want a finite number; the "
                          "gradient is dropped, weights and moments stay as they were; logprobs "
                          "or weights out of proportion?",
                          norm));
}

}  // namespace

api::StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter,
                             const api::AdamW& adamw) {
  if (!adapter.trains() || !adapter.has_gradient)
    return {.stepped = false, .grad_norm = 0.0, .step = adapter.step};
  adapter.finish_gradients(backend);
  return step_adapter(backend, adapter, adamw,
                      std::sqrt(ops::sum_of_squares(backend, adapter.gradient_parts())));
}

void add_squares(Backend& backend, const model::LoraAdapter& adapter, std::span<double> sums) {
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
  ops::adamw_list(backend, adamw_args(adamw, norm, adapter.step), adapter.step_items());
  adapter.has_gradient = false;
  return {.stepped = true, .grad_norm = norm, .step = adapter.step};
}

BaseTrainer::BaseTrainer(const Backend& backend, const model::ModelWeights& weights)
    : allocator_(backend.allocator()), weights_(weights) {
  num_parameters_ = weights.num_parameters();
  grad_memory_ = Memory(allocator_, num_parameters_ * dtype_bytes(DType::kF32));
  grads_ = TensorView(grad_memory_.data(), DType::kF32, {num_parameters_});
  gradients_.d_weight = views(grads_);
  const model::Parameter& embedding = weights.table()[weights.embedding_index()];
  if (weights.head_index() == weights.embedding_index() && embedding.held) {
    const Shape& shape = embedding.shape;
    tied_memory_ = Memory(allocator_, shape.num_elements() * dtype_bytes(DType::kF32));
    gradients_.d_tied_head = TensorView(tied_memory_.data(), DType::kF32, shape);
  }
  if (!weights.layers().mtp_layer() || !embedding.held) return;
  // A first stage without the head has a place for what the last one's embedding accumulates.
  const bool head_held = weights.table()[weights.head_index()].held;
  const Shape& shape = embedding.shape;
  const int64_t bytes = Arena::aligned(shape.num_elements() * dtype_bytes(DType::kF32));
  mtp_memory_ = Memory(allocator_, (head_held ? 2 : 1) * bytes);
  char* base = static_cast<char*>(mtp_memory_.data());
  gradients_.d_mtp_embedding = TensorView(base, DType::kF32, shape);
  if (head_held) gradients_.d_mtp_head = TensorView(base + bytes, DType::kF32, shape);
}

std::vector<TensorView> BaseTrainer::views(TensorView flat) const {
  std::vector<TensorView> out;
  int64_t offset = 0;
  for (const model::Parameter& parameter : weights_.table()) {
    if (!parameter.trains()) {
      out.emplace_back();
      continue;
    }
    out.push_back(flat.part(offset, parameter.shape));
    offset += parameter.shape.num_elements();
  }
  return out;
}

// A matrix that is neither embedding nor head. Biases and gates of two axes are drawn as constants.
bool BaseTrainer::is_muons(size_t index) const {
  const model::Parameter& parameter = weights_.table()[index];
  return how_.muon && parameter.shape.rank() == 2 && !parameter.buffer &&
         index != weights_.embedding_index() && index != weights_.head_index() &&
         (parameter.is_matrix() || parameter.draw == model::ParamDraw::kNormal);
}

void BaseTrainer::enable_steps(FunctionRef<void(size_t, TensorView)> read, const BaseStep& how) {
  if (steps_enabled_) return;
  if (!weights_.forms().empty()) {
    throw Error(ErrorCode::kUnsupported,
                "base parameters that are kept in 4 or 8 bits cannot train; load them with "
                "--weights bf16");
  }
  steps_enabled_ = true;
  how_ = how;
  int64_t num_second = 0;
  for (size_t index = 0; index < weights_.table().size(); ++index) {
    const model::Parameter& parameter = weights_.table()[index];
    if (parameter.trains() && !is_muons(index)) num_second += parameter.shape.num_elements();
  }
  const int64_t bytes = Arena::aligned(num_parameters_ * dtype_bytes(DType::kF32));
  step_memory_ = Memory(allocator_, 2 * bytes + num_second * dtype_bytes(DType::kF32));
  char* base = static_cast<char*>(step_memory_.data());
  params_ = TensorView(base, DType::kF32, {num_parameters_});
  m_ = TensorView(base + bytes, DType::kF32, {num_parameters_});
  v_ = TensorView(base + 2 * bytes, DType::kF32, {num_second});
  masters_ = views(params_);
  firsts_ = views(m_);
  seconds_.resize(firsts_.size());
  int64_t second = 0;
  for (size_t index = 0; index < seconds_.size(); ++index) {
    if (firsts_[index].empty() || is_muons(index)) continue;
    seconds_[index] = v_.part(second, firsts_[index].shape);
    second += firsts_[index].shape.num_elements();
  }
  if (how_.router_bias_rate != 0.0) gradients_.expert_loads.resize(weights_.table().size());
  for (const size_t index : router_biases()) {
    const model::Parameter& parameter = weights_.table()[index];
    if (!parameter.held) continue;
    gradients_.expert_loads[index].resize(static_cast<size_t>(parameter.shape[0]));
  }
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (!masters_[index].empty()) read(index, masters_[index]);
  }
}

void BaseTrainer::finish_gradients(Backend& backend) {
  const auto add = [&](TensorView apart, size_t index) {
    if (apart.empty()) return;
    ops::add_into(backend, apart, gradients_.d_weight[index]);
    ops::fill_zero(backend, apart);
  };
  add(gradients_.d_tied_head, weights_.embedding_index());
  add(gradients_.d_mtp_embedding, weights_.embedding_index());
  add(gradients_.d_mtp_head, weights_.head_index());
}

api::StepResult BaseTrainer::step(Backend& backend, model::ModelWeights& weights,
                                  const api::AdamW& adamw) {
  CHECK(steps_enabled_);
  if (!has_gradient) return {.stepped = false, .grad_norm = 0.0, .step = num_steps};
  finish_gradients(backend);
  double squares = 0.0;  // parameters in the table's order
  for (const TensorView& gradient : gradients_.d_weight) {
    if (!gradient.empty()) squares += ops::sum_of_squares(backend, gradient);
  }
  return step(backend, weights, adamw, std::sqrt(squares));
}

void BaseTrainer::add_squares(Backend& backend, std::span<double> sums) const {
  CHECK(sums.size() == gradients_.d_weight.size(), sums.size());
  for (size_t index = 0; index < sums.size(); ++index) {
    const TensorView& gradient = gradients_.d_weight[index];
    // Of an embedding that two stages hold, the first one's.
    const bool counted = index != weights_.embedding_index() || weights_.begins();
    if (!gradient.empty() && counted) sums[index] += ops::sum_of_squares(backend, gradient);
  }
}

api::StepResult BaseTrainer::step(Backend& backend, model::ModelWeights& weights,
                                  const api::AdamW& adamw, double norm) {
  CHECK(steps_enabled_);
  if (!std::isfinite(norm)) {
    zero_gradients(backend);
    throw_not_finite(norm);
  }
  ++num_steps;
  if (how_.muon) {
    step_each(backend, adamw, norm);
  } else {
    ops::adamw(backend, adamw_args(adamw, norm, num_steps), grads_, params_, m_, v_);
  }
  balance_routers(backend);
  zero_gradients(backend);
  refresh(backend, weights);
  return {.stepped = true, .grad_norm = norm, .step = num_steps};
}

bool BaseTrainer::follows_loads(size_t index) const {
  const model::Parameter& parameter = weights_.table()[index];
  return how_.router_bias_rate != 0.0 && parameter.row != nullptr && parameter.row->balances;
}

std::vector<size_t> BaseTrainer::router_biases() const {
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

void BaseTrainer::step_each(Backend& backend, const api::AdamW& adamw, double norm) {
  const ops::AdamWArgs args = adamw_args(adamw, norm, num_steps);
  const MuonArgs muon_args = {.lr = adamw.lr,
                              .momentum = how_.muon_momentum,
                              .weight_decay = adamw.weight_decay,
                              .grad_scale = args.grad_scale};
  for (size_t index = 0; index < masters_.size(); ++index) {
    const TensorView& p = masters_[index];
    if (p.empty()) continue;
    if (is_muons(index)) {
      step_muon(backend, muon_args, index);
      continue;
    }
    const Shape flat = {p.shape.num_elements()};
    ops::adamw(backend, args, gradients_.d_weight[index].reshape(flat), p.reshape(flat),
               firsts_[index].reshape(flat), seconds_[index].reshape(flat));
  }
}

// Rows that are read in one kind of block are matrices of their own: a grouped projection's.
int64_t BaseTrainer::muon_rows(size_t index) const {
  const model::Parameter& parameter = weights_.table()[index];
  const model::RowBlocks& blocks = parameter.blocks;
  return blocks.second == 0 && blocks.first > 0 ? blocks.first : parameter.shape[0];
}

void BaseTrainer::step_muon(Backend& backend, const MuonArgs& args, size_t index) {
  const TensorView& p = masters_[index];
  const Shape shape = {muon_rows(index), p.cols()};
  for (int64_t first = 0; first < p.rows(); first += shape[0]) {
    const int64_t offset = first * p.cols();
    muon(backend, args, gradients_.d_weight[index].part(offset, shape), p.part(offset, shape),
         firsts_[index].part(offset, shape));
  }
}

void BaseTrainer::count_step(Backend& counter) {
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (masters_[index].empty() || !is_muons(index)) continue;
    const TensorView part = masters_[index].part(0, {muon_rows(index), masters_[index].cols()});
    muon(counter, {}, part, part, part);
  }
}

void BaseTrainer::zero_gradients(Backend& backend) {
  ops::fill_zero(backend, grads_);
  for (const TensorView& apart :
       {gradients_.d_tied_head, gradients_.d_mtp_embedding, gradients_.d_mtp_head}) {
    if (!apart.empty()) ops::fill_zero(backend, apart);
  }
  for (std::vector<int64_t>& loads : gradients_.expert_loads)
    std::fill(loads.begin(), loads.end(), 0);
  has_gradient = false;
}

void BaseTrainer::refresh(Backend& backend, model::ModelWeights& weights) const {
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (!masters_[index].empty()) weights.write(backend, index, 0, masters_[index]);
  }
}

}  // namespace strata::train
