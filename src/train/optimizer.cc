#include "train/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace strata::train {
namespace {

ops::AdamWArgs adamw_args(const AdamWOptions& options, double grad_norm, int64_t step) {
  const bool clip = options.grad_clip_norm > 0.0 && grad_norm > options.grad_clip_norm;
  return {.lr = options.lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .grad_scale = clip ? options.grad_clip_norm / grad_norm : 1.0,
          .step = step};
}

// The step of a module's values, and zeros for its gradient.
void step_values(Backend& backend, const model::LoraAdapter& adapter,
                 const model::LoraModule& module, const ops::AdamWArgs& args) {
  const int64_t count = module.a.shape.num_elements() + module.b.shape.num_elements();
  const auto part = [&](TensorView flat) {
    return TensorView(flat.f32() + module.a_offset, DType::kF32, {count});
  };
  ops::adamw(backend, args, part(adapter.gradients()), part(adapter.parameters()),
             part(adapter.first_moments()), part(adapter.second_moments()));
  ops::fill_zero(backend, part(adapter.gradients()));
}

// Steps and refreshes every module. A small one stays in a core's cache from the step to the copy
// that products read; all workers share each large one.
void step_modules(Backend& backend, model::LoraAdapter& adapter, const ops::AdamWArgs& args) {
  constexpr int64_t kSmall = 1 << 17;
  const auto is_small = [](const model::LoraModule& module) {
    return module.a.shape.num_elements() + module.b.shape.num_elements() <= kSmall;
  };
  for (const model::LoraModule& module : adapter.modules()) {
    if (!is_small(module)) step_values(backend, adapter, module, args);
  }
  backend.run_in_lanes(std::ssize(adapter.modules()), [&](int64_t i, Backend& lane) {
    const model::LoraModule& module = adapter.modules()[static_cast<size_t>(i)];
    if (is_small(module)) step_values(lane, adapter, module, args);
    adapter.refresh_module(lane, static_cast<size_t>(i));
  });
}

}  // namespace

StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter,
                        const AdamWOptions& options) {
  if (!adapter.trains() || !adapter.has_gradient)
    return {.stepped = false, .grad_norm = 0.0, .step = adapter.step};
  const double norm = std::sqrt(ops::sum_of_squares(backend, adapter.gradients()));
  if (!std::isfinite(norm)) {
    ops::fill_zero(backend, adapter.gradients());
    adapter.has_gradient = false;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("optim_step: the gradient's norm is {}, want a finite number; the "
                            "gradient is dropped, weights and moments stay as they were; logprobs "
                            "or weights out of proportion?",
                            norm));
  }
  ++adapter.step;
  step_modules(backend, adapter, adamw_args(options, norm, adapter.step));
  adapter.has_gradient = false;
  return {.stepped = true, .grad_norm = norm, .step = adapter.step};
}

BaseTrainer::BaseTrainer(const model::ModelWeights& weights) : weights_(weights) {
  num_parameters_ = weights.num_parameters();
  grad_memory_ = Memory(num_parameters_ * dtype_bytes(DType::kF32));
  grads_ = TensorView(grad_memory_.data(), DType::kF32, {num_parameters_});
  gradients_.d_weight = views(grads_);
  if (weights.head_index() == weights.embedding_index()) {
    const Shape& shape = weights.table()[weights.embedding_index()].shape;
    tied_memory_ = Memory(shape.num_elements() * dtype_bytes(DType::kF32));
    gradients_.d_tied_head = TensorView(tied_memory_.data(), DType::kF32, shape);
  }
}

std::vector<TensorView> BaseTrainer::views(TensorView flat) const {
  std::vector<TensorView> out;
  int64_t offset = 0;
  for (const model::Parameter& parameter : weights_.table()) {
    if (parameter.buffer) {
      out.emplace_back();
      continue;
    }
    out.emplace_back(flat.f32() + offset, DType::kF32, parameter.shape);
    offset += parameter.shape.num_elements();
  }
  return out;
}

void BaseTrainer::enable_steps(FunctionRef<void(size_t, TensorView)> read) {
  if (steps_enabled_) return;
  steps_enabled_ = true;
  const int64_t bytes = Arena::aligned(num_parameters_ * dtype_bytes(DType::kF32));
  step_memory_ = Memory(3 * bytes);
  char* base = static_cast<char*>(step_memory_.data());
  params_ = TensorView(base, DType::kF32, {num_parameters_});
  m_ = TensorView(base + bytes, DType::kF32, {num_parameters_});
  v_ = TensorView(base + 2 * bytes, DType::kF32, {num_parameters_});
  masters_ = views(params_);
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (!masters_[index].empty()) read(index, masters_[index]);
  }
}

void BaseTrainer::finish_gradients(Backend& backend) {
  if (gradients_.d_tied_head.empty()) return;
  ops::add_into(backend, gradients_.d_tied_head, gradients_.d_weight[weights_.embedding_index()]);
  ops::fill_zero(backend, gradients_.d_tied_head);
}

StepResult BaseTrainer::step(Backend& backend, model::ModelWeights& weights,
                             const AdamWOptions& options) {
  CHECK(steps_enabled_);
  if (!has_gradient) return {.stepped = false, .grad_norm = 0.0, .step = num_steps};
  finish_gradients(backend);
  const double norm = std::sqrt(ops::sum_of_squares(backend, grads_));
  ++num_steps;
  ops::adamw(backend, adamw_args(options, norm, num_steps), grads_, params_, m_, v_);
  zero_gradients(backend);
  refresh(backend, weights);
  return {.stepped = true, .grad_norm = norm, .step = num_steps};
}

void BaseTrainer::zero_gradients(Backend& backend) {
  ops::fill_zero(backend, grads_);
  if (!gradients_.d_tied_head.empty()) ops::fill_zero(backend, gradients_.d_tied_head);
  has_gradient = false;
}

void BaseTrainer::refresh(Backend& backend, model::ModelWeights& weights) const {
  for (size_t index = 0; index < masters_.size(); ++index) {
    if (!masters_[index].empty()) weights.write(backend, index, 0, masters_[index]);
  }
}

}  // namespace strata::train
