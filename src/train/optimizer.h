// The optimizer step of one trained thing: global-norm clip (the squared norm is a double: one sum
// a row of a module, rows ascending, modules in the table's order, rounded once), AdamW, gradients
// back to zero, compute copies refreshed. A step without an accumulated gradient is a no-op:
// weights, moments and step count stay, and the result says so. Engine thread only.
#pragma once
#include <vector>

#include "api/batch.h"
#include "backend/backend.h"
#include "base/function_ref.h"
#include "model/adapter/lora.h"
#include "model/pass.h"

namespace strata::train {

// A gradient that is not finite is dropped and told by Error{kInvalidArgument}; nothing else
// changes.
api::StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter,
                             const api::AdamW& adamw);

// Full-parameter training: fp32 row-major masters of every base parameter are the truth; products
// read panels refreshed from them. Gradients always; masters and moments only once enable_steps()
// is called.
class BaseTrainer {
 public:
  BaseTrainer(const Backend& backend, const model::ModelWeights& weights);

  // Fills the masters through `read` (index, dense f32 view of the parameter's shape) and allocates
  // moments.
  void enable_steps(FunctionRef<void(size_t, TensorView)> read);
  [[nodiscard]] bool steps_enabled() const { return steps_enabled_; }

  [[nodiscard]] model::BaseGradients* gradients() { return &gradients_; }
  // Adds the tied head's accumulator to the embedding's; gradient() is then complete. Idempotent.
  void finish_gradients(Backend& backend);
  // Views of buffers, which do not train, are empty.
  [[nodiscard]] TensorView gradient(size_t index) const { return gradients_.d_weight[index]; }
  [[nodiscard]] TensorView master(size_t index) const { return masters_[index]; }
  // Flat [n] f32 blocks in the table's order.
  [[nodiscard]] TensorView masters() const { return params_; }
  [[nodiscard]] TensorView first_moments() const { return m_; }
  [[nodiscard]] TensorView second_moments() const { return v_; }

  api::StepResult step(Backend& backend, model::ModelWeights& weights, const api::AdamW& adamw);
  void zero_gradients(Backend& backend);
  // Writes the masters to the weights' compute copies.
  void refresh(Backend& backend, model::ModelWeights& weights) const;

  int64_t num_steps = 0;
  bool has_gradient = false;

 private:
  std::vector<TensorView> views(TensorView flat) const;

  Allocator& allocator_;
  const model::ModelWeights& weights_;
  int64_t num_parameters_ = 0;
  bool steps_enabled_ = false;
  Memory grad_memory_, tied_memory_, step_memory_;
  TensorView grads_, params_, m_, v_;
  std::vector<TensorView> masters_;
  model::BaseGradients gradients_;
};

}  // namespace strata::train
