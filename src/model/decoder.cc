// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <utility>

#include "model/embedding.h"
#include "model/final_norm.h"
#include "model/per_layer_inputs.h"
#include "model/residual.h"

namespace strata::model {
namespace {

void enter_layer(const Pass& pass, int64_t layer, int64_t next) {
  pass.unless_counting([&] { pass.weights.enter_layer(pass.backend, layer, next); });
}

void keep_hidden_state(Pass& pass, TensorView hidden_states, int64_t index, TensorView x) {
  if (!hidden_states.empty()) ops::copy(pass.backend, x, hidden_states.at(index));
}

// The state before the first layer: the embedding's rows in every stream.
void embed_tokens(Pass& pass, TensorView x) {
  const int64_t width = pass.weights.config().hidden_size;
  if (x.cols() == width) return embedding_forward(pass, x);
  const Scratch::Mark mark(pass.backend.scratch());
  const TensorView rows = pass.take(pass.dtype(), {x.rows(), width});
  embedding_forward(pass, rows);
  copy_to_streams(pass, rows, x);
}

void embed_tokens_backward(Pass& pass, TensorView d) {
  const int64_t width = pass.weights.config().hidden_size;
  if (d.cols() == width) return embedding_backward(pass, d);
  const Scratch::Mark mark(pass.backend.scratch());
  embedding_backward(pass, sum_streams(pass, d, width));
}

// A layer's input; behind the last layer that is here, the state that the final norm or the next
// stage reads.
TensorView allocate_layer_input(Pass& pass, int64_t layer, const Recompute& recompute) {
  const ModelConfig& config = pass.weights.config();
  const Shape shape = {pass.num_tokens(), config.state_width()};
  if (layer == pass.weights.part().last) {
    return pass.backend.scratch().take(pass.dtype(), shape, kLayerInputTag);
  }
  return pass.allocate_saved(layer, kLayerInputTag, 0.0, pass.dtype(), shape,
                             recompute.offloads(layer, kLayerInputTag));
}

// A layer's input that is nothing to keep.
TensorView allocate_state(Pass& pass) {
  return pass.backend.scratch().take(
      pass.dtype(), {pass.num_tokens(), pass.weights.config().state_width()}, kLayerInputTag);
}

FinalNorm norm_of(const Pass& pass) {
  return {.streams = pass.weights.streams(),
          .weight = pass.weights.final_norm(),
          .weight_index = pass.weights.final_norm_index()};
}

void count_layer(const Tape& tape, int64_t weight) {
  if (tape.layers_done != nullptr) *tape.layers_done += weight;
}

// The caller's memory for the last layer's output; empty: there is none.
TensorView given_last_state(const Pass& pass, const Tape& tape) {
  return state_of_border(tape.last_memory, pass.weights.config().state_width());
}

// Memory for layers' outputs that are nothing to keep: two states in turn, so that a layer reads
// one and writes the other.
class StatesInTurn {
 public:
  TensorView next(Pass& pass) {
    TensorView& state = states_[turn_];
    turn_ = 1 - turn_;
    if (state.empty()) state = allocate_state(pass);
    return state;
  }

 private:
  TensorView states_[2];
  size_t turn_ = 0;
};

void allocate_kept_of_all_layers(Pass& pass, Tape& tape, TensorView x) {
  const LayerRange& part = pass.weights.part();
  for (int64_t layer = part.first; layer < part.last; ++layer) {
    tape.layers.push_back(allocate_never_recomputed(pass, layer, x, tape.pool));
    allocate_kept(pass, layer, tape.layers.back(), tape.pool, tape.recompute);
  }
}

// The layers where only the first one's input is kept of their inputs. What is kept of all layers
// is taken before what goes.
TensorView forward_keeping_first_input(Pass& pass, Tape& tape, TensorView x,
                                       TensorView hidden_states) {
  CHECK(!tape.recompute.offloads_any());
  const LayerRange& part = pass.weights.part();
  allocate_kept_of_all_layers(pass, tape, x);
  const TensorView given = given_last_state(pass, tape);
  const TensorView last = given.empty() ? allocate_state(pass) : given;
  const Scratch::Mark mark(pass.backend.scratch());
  StatesInTurn between;
  for (int64_t layer = part.first; layer < part.last; ++layer) {
    enter_layer(pass, layer, layer + 1);
    keep_hidden_state(pass, hidden_states, layer - part.first, x);
    LayerSaved& kept = tape.layers[static_cast<size_t>(layer - part.first)];
    kept.states[0] = x;
    x = layer + 1 == part.last ? last : between.next(pass);
    discarding_forward(pass, layer, kept, tape.pool, tape.recompute, x);
    count_layer(tape, 1);
  }
  return last;
}

// The layers, each with its input kept.
TensorView forward_keeping_inputs(Pass& pass, Tape& tape, TensorView x, TensorView hidden_states) {
  const LayerRange& part = pass.weights.part();
  const TensorView given = given_last_state(pass, tape);
  for (int64_t layer = part.first; layer < part.last; ++layer) {
    enter_layer(pass, layer, layer + 1);
    keep_hidden_state(pass, hidden_states, layer - part.first, x);
    const bool is_given = layer + 1 == part.last && !given.empty();
    const TensorView out = is_given ? given : allocate_layer_input(pass, layer + 1, tape.recompute);
    saving_forward(pass, layer, x, tape.pool, tape.recompute, tape.layers, out);
    count_layer(tape, 1);
    // But the last layer's, which backward needs first.
    if (layer + 1 < part.last) {
      pass.lists.saves.offloaded.write_behind(pass.backend, layer);
    }
    x = out;
  }
  return x;
}

// The layers where nothing is kept: their states are in x and `other` in turn.
TensorView forward_without_backward(Pass& pass, Tape& tape, TensorView x, TensorView other,
                                    TensorView hidden_states) {
  const LayerRange& part = pass.weights.part();
  const TensorView given = given_last_state(pass, tape);
  for (int64_t layer = part.first; layer < part.last; ++layer) {
    enter_layer(pass, layer, layer + 1);
    keep_hidden_state(pass, hidden_states, layer - part.first, x);
    const bool is_given = layer + 1 == part.last && !given.empty();
    const Scratch::Mark mark(pass.backend.scratch());
    const SavedPool::Mark saved_mark(tape.pool);
    const TensorView out = is_given ? given : other;
    discarding_forward(pass, layer, allocate_never_recomputed(pass, layer, x, tape.pool), tape.pool,
                       Recompute::kFull, out);
    count_layer(tape, 1);
    other = std::exchange(x, out);
  }
  return x;
}

// Makes the output of a layer again, of which nothing else stays.
void recompute_output(Pass& pass, Tape& tape, int64_t layer, const LayerSaved& kept,
                      TensorView out) {
  const Scratch::Mark mark(pass.backend.scratch());
  const SavedPool::Mark saved_mark(tape.pool);
  recompute_layer(pass, layer, kept, tape.pool, tape.recompute, out);
}

// Makes a stage's layer again: all of it or, where layers are regions too, only `out`, which the
// next layer reads. Returns what there is of the layer then.
LayerSaved restore_layer(Pass& pass, Tape& tape, int64_t layer, const LayerSaved& kept,
                         TensorView out) {
  if (!tape.regions.layers)
    return recompute_layer(pass, layer, kept, tape.pool, tape.recompute, out);
  const bool is_last = layer + 1 == pass.weights.part().last;
  if (!is_last) recompute_output(pass, tape, layer, kept, out);
  return kept;
}

// Makes a stage again from what is kept: all of its layers or, where these are regions too, their
// inputs.
void recompute_stage(Pass& pass, Tape& tape) {
  const TraceSpan span = traced(pass, "recompute stage", "tokens", pass.num_tokens());
  const LayerRange& part = pass.weights.part();
  const bool keeps_inputs = tape.regions.keeps_layer_inputs;
  tape.again.clear();
  TensorView x = tape.layers.empty() ? TensorView() : tape.layers.front().states[0];
  for (int64_t layer = part.first; layer < part.last; ++layer) {
    const bool is_last = layer + 1 == part.last;
    // Behind the last one it goes back.
    enter_layer(pass, layer, is_last ? layer - 1 : layer + 1);
    LayerSaved kept = tape.layers[static_cast<size_t>(layer - part.first)];
    if (!keeps_inputs) kept.states[0] = x;
    x = keeps_inputs || is_last ? TensorView() : allocate_state(pass);
    tape.again.push_back(restore_layer(pass, tape, layer, kept, x));
  }
}

// Makes d, the gradient of the last layer's output.
void backward_to_last_layer(Pass& pass, const Tape& tape, TensorView d, TensorView d_final,
                            TensorView d_last) {
  pass.unless_counting([&] { pass.weights.enter_end(); });
  ops::fill_zero(pass.backend, d);
  in_turn(tape.turns, kFinalNormPart,
          [&] { final_norm_backward(pass, norm_of(pass), tape.last, d_final, d); });
  if (!d_last.empty()) ops::add_into(pass.backend, d_last, d);
}

// The layers with what their backward needs on the tape.
TensorView forward_for_backward(Pass& pass, Tape& tape, TensorView x, TensorView hidden_states) {
  const bool keeps_first_input_only = pass.weights.part().size() > 0 &&
                                      !tape.recompute.keeps_all() && tape.regions.iterations &&
                                      !tape.regions.keeps_layer_inputs;
  return keeps_first_input_only ? forward_keeping_first_input(pass, tape, x, hidden_states)
                                : forward_keeping_inputs(pass, tape, x, hidden_states);
}

// The state that the first layer here reads: memory for the embedding's rows or, of a stage that
// does not begin the model, what the caller gave.
TensorView first_input(Pass& pass, const Tape& tape, const Recompute& recompute) {
  const TensorView x = pass.weights.begins()
                           ? allocate_layer_input(pass, 0, recompute)
                           : state_of_border(tape.first, pass.weights.config().state_width());
  CHECK(!x.empty());
  return x;
}

void embed_where_model_begins(Pass& pass, TensorView x) {
  if (!pass.weights.begins() || pass.num_tokens() == 0) return;
  pass.unless_counting([&] { pass.weights.enter_embedding(); });
  embed_tokens(pass, x);
  make_per_layer_inputs(pass, x);
}

// Embedding and layers, to the last state; what backward needs is then on the tape.
TensorView run_taped(Pass& pass, Tape& tape, TensorView hidden_states) {
  const TensorView x = first_input(pass, tape, tape.recompute);
  embed_where_model_begins(pass, x);
  return forward_for_backward(pass, tape, x, hidden_states);
}

// The same with nothing on the tape.
TensorView run_untaped(Pass& pass, Tape& tape, TensorView hidden_states) {
  const TensorView x = first_input(pass, tape, Recompute::kFull);
  const TensorView other = allocate_layer_input(pass, pass.weights.part().first, Recompute::kFull);
  embed_where_model_begins(pass, x);
  return forward_without_backward(pass, tape, x, other, hidden_states);
}

// `is_made`: all that backward needs of the layer is there; else it is recomputed here.
void backward_through_layer(Pass& pass, Tape& tape, int64_t layer, const LayerSaved& kept,
                            bool is_made, TensorView d) {
  const Scratch::Mark mark(pass.backend.scratch());
  pass.lists.saves.offloaded.read_ahead(pass.backend, layer - 1);
  const SavedPool::Mark saved_mark(tape.pool);
  const LayerSaved saved =
      is_made ? kept : recompute_layer(pass, layer, kept, tape.pool, tape.recompute);
  backward_in_turn(pass, layer, saved, {tape.turns, layer}, d);
  pass.lists.saves.offloaded.let_go(pass.backend, layer);
}

}  // namespace

void decoder_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView hidden_states,
                     TensorView final_hidden) {
  tape.layers.clear();
  tape.pool.clear();
  pass.lists.saves.clear();
  bind_shared_values(pass, tape.first);
  tape.last = wants_backward ? run_taped(pass, tape, hidden_states)
                             : run_untaped(pass, tape, hidden_states);
  if (!pass.weights.ends()) return copy_shared_values(pass, tape.last_memory);
  if (pass.num_tokens() == 0) return;
  pass.unless_counting([&] { pass.weights.enter_end(); });
  final_norm(pass, norm_of(pass), tape.last, final_hidden);
  keep_hidden_state(pass, hidden_states, pass.weights.part().size(),
                    pass.weights.config().streams ? tape.last : final_hidden);
}

void decoder_backward(Pass& pass, Tape& tape, TensorView d_final, TensorView d_last) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  pass.lists.saves.again = true;
  const LayerRange& part = pass.weights.part();
  const TensorView d = state_of_border(tape.d, pass.weights.config().state_width());
  CHECK(d.rows() == pass.num_tokens(), d.rows(), pass.num_tokens());
  bind_shared_gradients(pass, tape.d);
  if (pass.weights.ends() && pass.num_tokens() > 0)
    backward_to_last_layer(pass, tape, d, d_final, d_last);
  const SavedPool::Mark stage_mark(tape.pool);
  const bool as_one = tape.regions.makes_stage() && !tape.recompute.keeps_all();
  if (as_one) recompute_stage(pass, tape);
  const std::vector<LayerSaved>& layers = as_one ? tape.again : tape.layers;
  const bool is_made = tape.recompute.keeps_all() || (as_one && !tape.regions.layers);
  for (int64_t layer = part.last - 1; layer >= part.first; --layer) {
    enter_layer(pass, layer, layer - 1);
    const LayerSaved& kept = layers[static_cast<size_t>(layer - part.first)];
    backward_through_layer(pass, tape, layer, kept, is_made, d);
    count_layer(tape, 2);
  }
  if (!pass.weights.begins() || pass.num_tokens() == 0) return;
  in_turn(tape.turns, kEmbeddingPart, [&] {
    per_layer_inputs_backward(pass, d);
    embed_tokens_backward(pass, d);
  });
}

void replay_states(Pass& pass) {
  const LayerRange& part = pass.weights.part();
  for (int64_t layer = part.first; layer < part.last; ++layer) {
    for (const SublayerContext& sublayer : pass.weights.layer(layer)) {
      if (sublayer.block->replay == nullptr) continue;
      enter_layer(pass, layer, layer + 1);
      sublayer.block->replay(pass, sublayer.inner);
    }
  }
}

}  // namespace strata::model
