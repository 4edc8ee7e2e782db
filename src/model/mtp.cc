// SPDX-License-Identifier: Apache-2.0
#include "model/mtp.h"

#include "model/final_norm.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

int64_t layer_of(const Pass& pass) { return pass.weights.config().num_layers(); }

FinalNorm norm_of(const Pass& pass) {
  const ParamView& norm = pass.weights.mtp_norm();
  return {.streams = pass.weights.mtp_streams(), .weight = norm.values, .weight_index = norm.index};
}

}  // namespace

void mtp_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView state,
                 TensorView final_hidden) {
  Scratch& scratch = pass.backend.scratch();
  const int64_t layer = layer_of(pass);
  pass.unless_counting([&] { pass.weights.enter_layer(pass.backend, layer, layer + 1); });
  tape.layers.clear();
  tape.pool.clear();
  tape.last = scratch.take(pass.dtype(), state.shape, "mtp_state");
  if (wants_backward) {
    saving_forward(pass, layer, state, tape.pool, tape.recompute, tape.layers, tape.last);
  } else {
    discarding_forward(pass, layer, allocate_never_recomputed(pass, layer, state, tape.pool),
                       tape.pool, Recompute::kFull, tape.last);
  }
  if (pass.num_tokens() > 0) final_norm(pass, norm_of(pass), tape.last, final_hidden);
}

void mtp_norm_backward(Pass& pass, const Tape& tape, TensorView d_final, TensorView d) {
  ops::fill_zero(pass.backend, d);
  final_norm_backward(pass, norm_of(pass), tape.last, d_final, d);
}

void mtp_layer_backward(Pass& pass, Tape& tape, GradientTurns* turns, TensorView d) {
  const Scratch::Mark mark(pass.backend.scratch());
  pass.lists.saves.again = true;
  const int64_t layer = layer_of(pass);
  const Turn turn(turns, kMtpPart);
  const LayerSaved& kept = tape.layers.front();
  if (tape.recompute.keeps_all()) return backward_in_turn(pass, layer, kept, turn, d);
  const SavedPool::Mark saved_mark(tape.pool);
  const LayerSaved saved = recompute_layer(pass, layer, kept, tape.pool, tape.recompute);
  backward_in_turn(pass, layer, saved, turn, d);
}

}  // namespace strata::model
