// One training or scoring pass, from laid-out sequences to logprobs and gradients: the same code
// counts on a counting backend what it takes on a real one. Engine thread only.
#pragma once
#include "api/tensor_sink.h"
#include "engine/pass_builder.h"
#include "model/decoder.h"
#include "train/loss_pass.h"

namespace strata::engine {

class Engine;

struct PassWork {
  PassBuilder& builder;
  bool adapter_gradients = false;
  model::BaseGradients* base_gradients = nullptr;
  model::Recompute recompute = model::Recompute::kNone;
  bool want_loss = false;
  train::LossInputs inputs = {};
  std::span<float> logprobs = {};
  std::span<float> losses = {};
  // Large results, written to rows [first_row, ...) of the sink's tensors.
  bool want_hidden_states = false;
  bool want_logits = false;
  int64_t first_row = 0;
  api::TensorSink* sink = nullptr;

  [[nodiscard]] bool backward() const { return adapter_gradients || base_gradients != nullptr; }
};

// Reused from pass to pass.
struct PassState {
  model::Tape tape;
  train::LossPass loss_pass;
  model::RowChunks logit_chunks;
  std::vector<uint8_t> all_rows;
};

void run_pass(Backend& backend, Engine& engine, const PassWork& work, PassState& state);

}  // namespace strata::engine
