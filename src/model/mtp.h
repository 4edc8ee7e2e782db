// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction: a layer behind the decoder's that reads the decoder's last state and the
// next token and predicts the one behind it, by the decoder's own embedding and head. Its first
// sublayer is model/blocks/mtp_input.h; what reads its streams and its final norm are its own. It
// runs on a pass of its own next to the decoder's, whose tokens are the next ones. T tokens, D
// model width, n streams. Engine thread only.
#pragma once
#include "model/decoder.h"

namespace strata::model {

// Reads state [T, n D], writes final_hidden [T, D], both of the compute type. What backward needs
// is left on the tape as by decoder_forward, which must have run on the same lists before.
void mtp_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView state,
                 TensorView final_hidden);

// d_final [T, D] f32: the gradient of final_hidden. Writes d_state [T, n D] f32 and accumulates
// what the pass asks for. Runs before decoder_backward.
void mtp_backward(Pass& pass, Tape& tape, TensorView d_final, TensorView d_state);

}  // namespace strata::model
