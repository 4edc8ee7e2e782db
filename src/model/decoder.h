// SPDX-License-Identifier: Apache-2.0
// The decoder: embedding, L layers, final norm; of a stage, those that its weights hold. forward()
// leaves what backward() needs on a Tape, by what the pass keeps. T tokens, D model width, L
// layers, n streams (1 for most models). Tape memory comes from the backend's scratch: the caller
// holds a Mark around forward and backward. Engine thread only.
#pragma once
#include <vector>

#include "model/decoder_layer.h"
#include "model/pass/gradient_turns.h"
#include "model/pass/recompute.h"

namespace strata::model {

struct Tape {
  SavedPool pool;
  Recompute recompute;
  RecomputeRegions regions;
  std::vector<LayerSaved> layers;  // unless all is kept, only what is kept is set
  std::vector<LayerSaved> again;   // of a stage that is recomputed before its backward
  // What crosses the borders of a stage, [T, border_width] (model/pass/shared_values.h). Of one
  // that does not begin the model the caller gives memory for `first`, and fills it before forward,
  // which may write over it; of one that does not end it, memory for `last_memory`, which forward
  // fills.
  TensorView first;
  TensorView last_memory;
  TensorView last;  // [T, n D], the last layer's output
  // [T, border_gradient_width] f32: the gradient of the border behind the stage, which backward
  // makes that of the one before it. The caller gives memory for it and, unless the model ends
  // there, fills it before.
  TensorView d;
  GradientTurns* turns = nullptr;  // of backward's gradients
  int64_t* layers_done = nullptr;  // counted up, by 1 for a layer's forward, 2 for its backward
};

// Writes final_hidden [T, D] (compute type) and, unless empty, hidden_states [L + 1, T, n D] f32 in
// Hugging Face's order: entry i the input of layer i, the last entry the final norm's output, or of
// a model with streams the last layer's output. Where the model does not end, there is no last
// entry and final_hidden is empty. Without `wants_backward` nothing is left on the tape.
void decoder_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView hidden_states,
                     TensorView final_hidden);

// d_final [T, D] f32: the gradient of final_hidden, or empty like it; d_last [T, n D] f32: what
// else reads the last layer's output has for it, or empty. Accumulates what the pass asks for.
void decoder_backward(Pass& pass, Tape& tape, TensorView d_final, TensorView d_last = {});

// Where a pass read drafts, and the pass given has of each of its sequences the rows that count,
// which are its first: makes the state what these alone would have left, of blocks whose cache asks
// for it (ReplaySpec).
void replay_states(Pass& pass);

}  // namespace strata::model
