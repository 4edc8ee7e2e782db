// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction along with a pass: its rows are every token but the last of each sequence,
// of which it reads the decoder's last state and the next token, and which it trains on the targets
// of the next row. Engine thread only.
#pragma once
#include <span>
#include <vector>

#include "engine/pass_workspace.h"
#include "model/mtp.h"
#include "train/loss_pass.h"

namespace strata::engine {

// What a pass asks of it.
struct MtpWork {
  float weight = 0.0f;  // of its loss in the gradients
  bool backward = false;
  model::Recompute recompute = model::Recompute::kNone;
  bool want_loss = false;
  train::LossInputs inputs = {};  // the pass's own
  model::GradientTurns* turns = nullptr;
  std::span<float> losses = {};  // as its targets, not multiplied by the weight; zero before
};

// Reused from pass to pass.
class MtpPass {
 public:
  // The pass of its rows, which borrows this one.
  model::Pass build_pass(const model::Pass& pass, const MtpWork& work);
  // The rows of the decoder's pass that it reads; none where every sequence is of one token.
  [[nodiscard]] std::span<const int32_t> rows() const { return rows_; }

  // Reads `from`, what the decoder made of the pass (model::mtp_state); writes hidden [rows, D],
  // what the head reads. What backward() needs stays in the scratch.
  void forward(model::Pass& own, const MtpWork& work, TensorView from, TensorView hidden);
  // Losses; and where the work asks for a backward, gradients in their turns, and adds to d_from,
  // f32.
  void loss_and_backward(model::Pass& own, const MtpWork& work, TensorView hidden,
                         TensorView d_from);

 private:
  void lay_out_rows(const model::Pass& pass);
  void lay_out_dealt_rows(const model::DealtRows& dealt);
  void lay_out_targets(const MtpWork& work);
  void write_losses(const MtpWork& work) const;

  PassBuilder builder_;
  model::DealtRows dealt_;  // of all expert ranks, where each runs other sequences
  std::vector<int32_t> rows_;
  std::vector<int32_t> targets_;
  std::vector<int64_t> first_targets_;
  std::vector<float> weights_, logprobs_, losses_;
  std::vector<api::Loss> losses_of_sequences_;
  model::Tape tape_;
  train::LossPass loss_pass_;
};

}  // namespace strata::engine
