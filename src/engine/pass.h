// SPDX-License-Identifier: Apache-2.0
// One training or scoring pass, from laid-out sequences to logprobs and gradients: the same code
// counts on a counting backend what it takes on a real one. A stage of a model runs its part of a
// pass, and a whole model is one stage: its forward, its loss and its backward may lie apart, with
// those of other passes between them, if each pass in flight has a scratch of its own. Engine
// thread only.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "api/batch.h"
#include "api/tensor_sink.h"
#include "engine/mtp_pass.h"
#include "engine/pass_workspace.h"
#include "model/decoder.h"
#include "model/pass/deferred_products.h"
#include "train/loss_pass.h"

namespace strata::engine {

class Engine;

struct PassWork {
  PassBuilder& builder;
  bool adapter_gradients = false;
  model::BaseGradients* base_gradients = nullptr;
  model::GradientTurns* turns = nullptr;    // of these gradients, where others add to them too
  const model::DealtRows* dealt = nullptr;  // of expert ranks that run other sequences each
  model::GradientTurns* expert_turns =
      nullptr;  // of experts', where other such ranks have them too
  model::Recompute recompute = model::Recompute::kNone;
  model::RecomputeRegions regions = {};
  bool want_loss = false;
  train::LossInputs inputs = {};
  std::span<float> logprobs = {};
  std::span<float> losses = {};
  std::span<float> top_logprobs = {};  // of the pass's rows; empty: not wanted
  float mtp_weight = 0.0f;             // of multi-token prediction; 0: it does not run
  std::span<float> mtp_losses = {};
  float indexer_weight = 0.0f;           // of the loss that trains indexers; 0: there is none
  std::span<float> indexer_losses = {};  // of the pass's rows, zero before
  // Large results, written to rows [first_row, ...) of the sink's tensors.
  bool want_hidden_states = false;
  bool want_logits = false;
  int64_t first_row = 0;
  api::TensorSink* sink = nullptr;

  [[nodiscard]] bool backward() const { return adapter_gradients || base_gradients != nullptr; }
  [[nodiscard]] bool trains() const { return want_loss && backward(); }
};

// Reused from pass to pass.
struct PassState {
  model::Tape tape;
  train::LossPass loss_pass;
  MtpPass mtp;
  model::RowChunks logit_chunks;
  std::vector<uint8_t> all_rows;
  std::vector<int32_t> all_rows_in_order;
};

// The caller holds a Mark of the backend's scratch for as long as this lives or, where other passes
// run meanwhile, of a scratch that holds what this one keeps (Scratch::Hold).
class StagePass {
 public:
  StagePass(Backend& backend, Engine& engine, const PassWork& work, PassState& state);
  StagePass(const StagePass&) = delete;
  StagePass& operator=(const StagePass&) = delete;

  // [T, n D] what crosses the stage's borders: a state of the compute type, and back its gradient
  // in f32. input() is filled before the forward of a stage that does not begin the model.
  // What crosses a border of stages, and its gradient (model/pass/shared_values.h).
  [[nodiscard]] Shape border_shape() const;
  [[nodiscard]] Shape gradient_shape() const;
  [[nodiscard]] TensorView input() const { return state_.tape.first; }

  // Counts up, while it runs, by 1 for the forward of a layer and by 2 for its backward.
  void count_layers_in(int64_t& layers) { state_.tape.layers_done = &layers; }
  // With hidden states and logits, where they are wanted. Writes the output to `memory`, of a stage
  // that does not end the model; elsewhere it is empty.
  void forward(TensorView memory = {});
  // Computes, on a stage that ends the model, the losses that are wanted, multi-token prediction
  // and, in training, the gradients of both for backward().
  void compute_losses_and_gradients();
  // d: the gradient of the output, of a stage that does not end the model, which becomes that of
  // the input. What is deferred runs later.
  void backward(TensorView d, model::DeferredProducts* deferred = nullptr);

 private:
  void take_states_and_hidden();
  void run_loss_pass();
  void write_large_results();

  const PassWork work_;
  PassState& state_;
  model::Pass pass_;
  model::IndexerLoss indexer_loss_;
  const bool head_apart_;  // ranks add to the head's gradient one behind the other
  TensorView hidden_;      // [T, D] where the model ends
  TensorView d_hidden_;    // f32
  // [T, n D] f32: what multi-token prediction has for the last state; empty where it reads hidden_.
  TensorView d_last_;
  TensorView states_;  // [layers (+ 1 where the model ends), T, n D] f32, where wanted
};

// What a pass of a whole model does in a row, for its count.
void count_pass_memory(Backend& counter, Engine& engine, const PassWork& work, PassState& state);
// What a pass does whose forward and backward are apart, likewise: what crosses borders takes no
// memory of it. Returns what it defers takes, where it `defers` weight gradients.
int64_t count_stage_pass(Backend& counter, Engine& engine, const PassWork& work, PassState& state,
                         bool defers);

// MicroBatch: neighbouring sequences of a batch laid out flat for one pass, with what their losses
// read and space for what they give. Owns the arrays that the pass borrows and reuses them, so that
// a warm step allocates nothing. Engine thread only.
class MicroBatch {
 public:
  // Sequences [first, last), which take gradients alike; there may be none, of a rank that runs
  // its experts for others. The pass borrows this until the next call.
  PassWork collate(Engine& engine, const api::Batch& batch, size_t first, size_t last);

  [[nodiscard]] const PassBuilder& builder() const { return builder_; }
  [[nodiscard]] PassState& state() { return state_; }
  // What a pass wrote for all targets, sequence by sequence.
  [[nodiscard]] std::vector<float>& logprobs() { return logprobs_; }
  [[nodiscard]] std::vector<float>& losses() { return losses_; }
  // Each token's loss of indexers, a sum over the layers that have run; empty where they do not
  // train.
  [[nodiscard]] std::span<float> indexer_losses() { return indexer_losses_; }
  // Into the results of the sequences laid out: what the model's end gives, and what is a sum over
  // all its layers.
  void store_logprobs_and_losses(const api::Batch& batch, api::BatchResult& result) const;
  void store_indexer_losses(const api::Batch& batch, api::BatchResult& result) const;
  // Tells the adapters, or the base parameters, that have gradients now.
  void mark_has_gradient(Engine& engine, const api::Batch& batch) const;

 private:
  void lay_out_sequences(Engine& engine, const api::Batch& batch);
  void append_loss_inputs(const api::Datum& datum);
  void resize_results(const api::Batch& batch);
  [[nodiscard]] bool trains_indexers(const api::Batch& batch) const {
    return batch.indexer_weight > 0.0f && gradients_ != api::Gradients::kNone;
  }

  size_t first_ = 0, last_ = 0;
  PassBuilder builder_;
  PassState state_;
  std::vector<int32_t> targets_;
  std::vector<int64_t> first_targets_;
  api::ByLossInput<std::vector<float>> columns_;
  std::vector<api::Loss> losses_of_sequences_;
  std::vector<float> references_;  // of sequences
  std::vector<float> logprobs_, losses_, top_logprobs_, mtp_losses_, indexer_losses_;
  api::Gradients gradients_ = api::Gradients::kNone;
};

}  // namespace strata::engine
