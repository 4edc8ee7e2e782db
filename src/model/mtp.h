// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction: a layer behind the decoder's that reads the decoder's last state, or what
// the final norm made of it, and the next token and predicts the one behind it, by the decoder's
// own embedding and head. Its first sublayer is that of model/blocks/mtp_input.h or
// model/blocks/mtp_joined_input.h; what reads its streams and its final norm are its own. It
// runs on a pass of its own next to the decoder's, whose tokens are the next ones. T tokens, D
// model width, n streams. Engine thread only.
#pragma once
#include "model/decoder.h"

namespace strata::model {

// What the layer reads: `last` [T, n D], the last output of a run of layers, or `hidden` [T, D],
// what the norm behind them made of it. The layers are the decoder's or, for further drafts, this.
inline TensorView mtp_state(const ModelConfig& config, TensorView last, TensorView hidden) {
  return config.mtp_reads_hidden ? hidden : last;
}

// Reads state [T, n D] or [T, D], as mtp_state() says, writes final_hidden [T, D], both of the
// compute type. What backward needs is left on the tape as by decoder_forward, which must have run
// on the same lists before.
void mtp_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView state,
                 TensorView final_hidden);

// d_final [T, D] f32: the gradient of final_hidden. Writes d, f32 like state: that of the layer's
// output.
void mtp_norm_backward(Pass& pass, const Tape& tape, TensorView d_final, TensorView d);
// Makes of d that of the state. Has a turn of its own with the layer's gradients. Runs before
// decoder_backward.
void mtp_layer_backward(Pass& pass, Tape& tape, GradientTurns* turns, TensorView d);

}  // namespace strata::model
