// SPDX-License-Identifier: Apache-2.0
// The optimizer step of one trained thing: global-norm clip (the squared norm is a double: one sum
// a row of a module, rows ascending, modules in the table's order, rounded once), AdamW, gradients
// back to zero, compute copies refreshed. A step without an accumulated gradient is a no-op:
// weights, moments and step count stay, and the result says so. Engine thread only.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/batch.h"
#include "backend/backend.h"
#include "backend/file_memory.h"
#include "backend/page_queue.h"
#include "base/function_ref.h"
#include "model/adapter/lora.h"
#include "model/pass/pass.h"
#include "train/muon.h"
#include "train/ownership.h"

namespace strata::train {

// A gradient that is not finite is dropped and told by Error{kInvalidArgument}; nothing else
// changes.
api::StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter,
                             const api::AdamW& adamw);

// The same where stages hold the adapter's modules: each adds the sums of squares of its own
// modules' gradients to `sums`, [modules x 2] of all, A's and then B's; the root of their sum,
// added in order, is the norm of a step that each then takes.
void add_grad_squares(Backend& backend, const model::LoraAdapter& adapter, std::span<double> sums);
api::StepResult step_adapter(Backend& backend, model::LoraAdapter& adapter, const api::AdamW& adamw,
                             double norm);

// How all parameters are stepped.
struct BaseStep {
  // Matrices by Muon (train/muon.h), each expert's and each group's of a grouped projection alone;
  // AdamW for the rest: embedding, head, norms, biases, gates, convolutions.
  bool muon = false;
  double muon_momentum = 0.95;
  // Not 0: behind the step routers' biases follow the loads of their experts, in all passes since
  // the last step (ops/router.h, balance_bias).
  double router_bias_rate = 0.0;
  // The folder of the files that masters and moments are in, which a step reads and writes once;
  // empty: memory.
  std::string folder = {};
};

// Who owns what of the parameters that `is_held` says, each matrix that Muon steps as a whole; of
// what a tensor rank has of them.
Ownership divide_parameters(const model::ModelWeights& weights, const BaseStep& how, int num_owners,
                            const model::TensorShare& share,
                            FunctionRef<bool(size_t index)> is_held);

// A last stage that is not the first reads the embedding too, and owns none of it: what its uses
// accumulate rests there, divided among its own ranks, until it goes to the first stage's owners.
Ownership divide_borrowed_embedding(const model::ModelWeights& weights, int num_owners,
                                    const model::TensorShare& share);
// How many such uses there are: as the head, and as embedding and head of multi-token prediction.
[[nodiscard]] int num_borrowed_uses(const model::ModelConfig& config);

// Which ranks add to a gradient, one behind the other.
enum class AddedBy : uint8_t {
  kDealing,       // all that deal micro-batches out
  kExpertCopies,  // of these, where experts are in several copies, those that have this expert
  kOne            // the one that alone has an expert
};

// A gradient that passes accumulate, of a parameter or of a second use of one.
struct Accumulator {
  int64_t part = 0;  // whose turn it is (model/pass/gradient_turns.h)
  size_t index = 0;  // the parameter
  TensorView working;
  TensorView own;  // the rows that are owned, at rest: [rows, cols]; or empty
  AddedBy added_by = AddedBy::kDealing;
  // No other rank adds to it. It is no part of a turn, and `working` is where it rests.
  [[nodiscard]] bool stays() const { return added_by == AddedBy::kOne; }
};

// Full-parameter training: fp32 row-major masters of every base parameter are the truth; products
// read panels refreshed from them. Gradients always; masters and moments only once enable_steps()
// is called. Of several owners each has masters, moments and, between passes, gradients of its own
// rows; what passes accumulate is then working memory of one part at a time, which they share.
class BaseTrainer {
 public:
  BaseTrainer(const Backend& backend, const model::ModelWeights& weights, Share share = {});

  // Fills the masters through `read` (index, first row, dense f32 view of the owned rows, which has
  // the parameter's shape where that is all of them) and allocates moments. What Muon steps has no
  // second ones. Nothing has been accumulated.
  void enable_steps(FunctionRef<void(size_t, int64_t, TensorView)> read, const BaseStep& how = {});
  [[nodiscard]] const BaseStep& how() const { return how_; }

  [[nodiscard]] const Share& share() const { return share_; }
  [[nodiscard]] const Ownership& ownership() const { return ownership_; }
  [[nodiscard]] const OwnedRows& own_rows(size_t index) const {
    return ownership_.rows(share_.owner, index);
  }
  // Who has what of an accumulator's gradients between passes: the owners, or of what is borrowed
  // those that divide_borrowed_embedding() says.
  [[nodiscard]] const Ownership& resting(size_t index) const {
    return is_borrowed(index) ? borrowed_ : ownership_;
  }
  // Those that several ranks add to are in one order on all of them; second uses of embedding and
  // head are the last.
  [[nodiscard]] std::span<const Accumulator> accumulators() const { return accumulators_; }
  [[nodiscard]] std::span<const Accumulator> second_uses() const {
    return std::span(accumulators_).subspan(first_second_use_);
  }

  [[nodiscard]] model::BaseGradients* gradients() { return &gradients_; }
  // Adds what embedding and head accumulated apart (model::BaseGradients); gradient() is then
  // complete. Forgets what is of a borrowed embedding, which has gone to its owners. Idempotent.
  void finish_gradients(Backend& backend);
  // Views of the rows that are owned; those of buffers, which do not train, are empty, as of what
  // another stage holds or another rank owns.
  [[nodiscard]] TensorView gradient(size_t index) const { return owned_gradients_[index]; }
  [[nodiscard]] TensorView master(size_t index) const { return masters_[index]; }
  [[nodiscard]] TensorView first_moment(size_t index) const { return firsts_[index]; }
  // Empty too where the parameter has none.
  [[nodiscard]] TensorView second_moment(size_t index) const { return seconds_[index]; }
  // Whether a parameter that trains, wherever it is held, has one.
  [[nodiscard]] bool has_second_moment(size_t index) const { return !is_for_muon(index); }
  // Flat [n] f32 blocks in the table's order, of what is owned; of second moments those that there
  // are.
  [[nodiscard]] TensorView masters() const { return params_; }
  [[nodiscard]] TensorView first_moments() const { return m_; }
  [[nodiscard]] TensorView second_moments() const { return v_; }

  // The biases that follow loads, by their place in the table, wherever they are held: state of a
  // run with its moments.
  [[nodiscard]] std::vector<size_t> router_bias_indices() const;
  // Empty where another stage holds it.
  [[nodiscard]] TensorView router_bias(size_t index) const {
    return weights_.table()[index].values;
  }

  // How many there are, or will be.
  [[nodiscard]] int64_t num_second_moments() const {
    return steps_enabled_ ? v_.shape.num_elements() : num_owned_;
  }
  // What it takes, or will once it steps; and of that masters and moments.
  [[nodiscard]] int64_t num_bytes() const;
  [[nodiscard]] int64_t state_bytes() const {
    return (2 * num_owned_ + num_second_moments()) * dtype_bytes(DType::kF32);
  }
  // These are in files.
  [[nodiscard]] bool in_files() const { return files_ != nullptr; }

  // Steps. Of weights that ranks divide (model/weights/weight_shards.h) masters alone move.
  api::StepResult step(Backend& backend, model::ModelWeights& weights, const api::AdamW& adamw);
  // The same where stages hold the parameters: each finishes its gradients and adds their sums of
  // squares to `sums`, [the table's size], those of tensor ranks behind what the ranks before have;
  // the root of the sum of all, added in order, is the norm.
  void add_grad_squares(Backend& backend, std::span<double> sums) const;
  // The same of one parameter's own rows; `sum` is that of the rows before them. Of tensor ranks
  // copies of another one's rows do not count.
  [[nodiscard]] double add_grad_squares(Backend& backend, size_t index, double sum) const;
  api::StepResult step(Backend& backend, model::ModelWeights& weights, const api::AdamW& adamw,
                       double norm);
  // Takes of a counting backend the scratch that a step takes.
  void count_step_scratch(Backend& counter);
  void zero_gradients(Backend& backend);
  // Writes the masters that are owned to the weights' compute copies, but of weights of which ranks
  // keep a part each.
  void refresh_weights(Backend& backend, model::ModelWeights& weights) const;

  int64_t num_steps = 0;
  bool has_gradient = false;

 private:
  // Says who owns what, and allocates what this one does.
  void divide_gradients();
  void list_parameters_as_accumulators();
  // Whether the parameter is an expert that some of the owners alone have.
  [[nodiscard]] bool is_of_divided_expert(size_t index) const;
  [[nodiscard]] AddedBy who_adds_to(size_t index) const;
  void allocate_working_gradients();
  [[nodiscard]] int64_t most_values_of_a_part() const;  // of accumulators
  void allocate_masters_and_moments();
  void allocate_expert_loads();  // of routers whose biases follow them
  // To the accumulators, with memory of their own.
  void add_second_uses();
  void add_second_use(TensorView& view, int64_t part, size_t index);
  [[nodiscard]] int64_t num_owned_second_moments() const;
  [[nodiscard]] std::vector<TensorView> second_moment_views(TensorView flat) const;
  std::vector<TensorView> owned_views(TensorView flat) const;
  [[nodiscard]] bool is_borrowed(size_t index) const {
    return index == weights_.embedding_index() && !weights_.begins();
  }
  [[nodiscard]] bool is_for_muon(size_t index) const;
  [[nodiscard]] bool follows_loads(size_t index) const;
  [[nodiscard]] int64_t muon_rows(size_t index) const;
  void balance_routers(Backend& backend);
  struct StepArgs;
  [[nodiscard]] StepArgs step_args(const api::AdamW& adamw, double norm) const;
  void step_parameter(Backend& backend, const StepArgs& args, size_t index);
  void step_in_files(Backend& backend, model::ModelWeights& weights, const StepArgs& args);
  [[nodiscard]] std::vector<PageRange> pages_of(size_t index) const;
  void step_by_muon(Backend& backend, const MuonArgs& args, size_t index);

  Allocator& allocator_;
  const model::ModelWeights& weights_;
  const Share share_;
  Ownership ownership_, borrowed_;
  int64_t num_owned_ = 0;
  bool steps_enabled_ = false;
  BaseStep how_;
  std::unique_ptr<FileAllocator> files_;
  Memory grad_memory_, step_memory_;
  std::vector<Memory> second_memory_;  // of second uses' gradients
  Memory working_memory_;              // of several owners
  TensorView grads_, params_, m_, v_;
  std::vector<TensorView> masters_, firsts_, seconds_, owned_gradients_;
  std::vector<Accumulator> accumulators_;
  size_t first_second_use_ = 0;           // among them
  std::vector<TensorView*> second_uses_;  // in gradients_
  model::BaseGradients gradients_;
  std::unique_ptr<PageQueue> queue_;  // of files_; last: it moves what the others own
};

}  // namespace strata::train
