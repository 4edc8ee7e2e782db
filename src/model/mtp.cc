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
  pass.on_host([&] { pass.weights.turn_to(pass.backend, layer, layer + 1); });
  tape.layers.clear();
  tape.pool.clear();
  tape.last = scratch.take(pass.dtype(), state.shape, "mtp_state");
  LayerSaved kept = keep_layer(pass, layer, state, tape.pool);
  if (wants_backward && tape.recompute.keeps_all()) {
    tape.layers.push_back(save_layer(pass, layer, kept, tape.pool));
    decoder_layer_forward(pass, layer, tape.layers.back(), tape.last);
  } else {
    const Recompute recompute = wants_backward ? tape.recompute : Recompute::kFull;
    if (wants_backward) {
      take_kept(pass, layer, kept, tape.pool, recompute);
      tape.layers.push_back(kept);
    }
    const Scratch::Mark mark(scratch);
    const SavedPool::Mark saved_mark(tape.pool);
    decoder_layer_forward(pass, layer, save_rest(pass, layer, kept, tape.pool, recompute),
                          tape.last);
  }
  final_norm(pass, norm_of(pass), tape.last, final_hidden);
}

void mtp_backward(Pass& pass, Tape& tape, TensorView d_final, TensorView d_state) {
  const Scratch::Mark mark(pass.backend.scratch());
  pass.lists.saves.again = true;
  const int64_t layer = layer_of(pass);
  ops::fill_zero(pass.backend, d_state);
  final_norm_backward(pass, norm_of(pass), tape.last, d_final, d_state);
  const LayerSaved& kept = tape.layers.front();
  if (tape.recompute.keeps_all()) return decoder_layer_backward(pass, layer, kept, d_state);
  const SavedPool::Mark saved_mark(tape.pool);
  const LayerSaved saved = save_rest(pass, layer, kept, tape.pool, tape.recompute);
  decoder_layer_again(pass, layer, saved);
  decoder_layer_backward(pass, layer, saved, d_state);
}

}  // namespace strata::model
