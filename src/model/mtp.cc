#include "model/mtp.h"

#include "model/residual.h"

namespace strata::model {
namespace {

int64_t layer_of(const Pass& pass) { return pass.weights.config().num_layers(); }

// What the final norm reads, from the scratch where there are streams.
TensorView read_state(Pass& pass, TensorView state) {
  const ModelConfig& c = pass.weights.config();
  if (!c.streams) return state;
  const TensorView x = pass.take(pass.dtype(), {state.rows(), c.hidden_size});
  c.streams->ops().read(pass, pass.weights.mtp_streams(), state, x);
  return x;
}

ops::RmsNormArgs final_norm(const Pass& pass, TensorView x) {
  const ModelConfig& c = pass.weights.config();
  return norm_args(x, pass.weights.mtp_norm().values, c.rms_norm_eps, c.norm_offset);
}

// final_hidden = norm(read(last)); writes d_last.
void final_norm_backward(Pass& pass, TensorView last, TensorView d_final, TensorView d_last) {
  const Scratch::Mark mark(pass.backend.scratch());
  const ModelConfig& c = pass.weights.config();
  ops::fill_zero(pass.backend, d_last);
  const TensorView x = read_state(pass, last);
  const TensorView d_x = c.streams ? zeros(pass, x.shape) : d_last;
  ops::rms_norm_backward(pass.backend, final_norm(pass, x), {}, d_final, d_x,
                         pass.base_gradient(pass.weights.mtp_norm().index));
  if (c.streams)
    c.streams->ops().read_backward(pass, pass.weights.mtp_streams(), last, d_x, d_last);
}

}  // namespace

void mtp_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView state,
                 TensorView final_hidden) {
  Scratch& scratch = pass.backend.scratch();
  const int64_t layer = layer_of(pass);
  if (!pass.backend.is_counting()) pass.weights.turn_to(layer, layer + 1);
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
  const Scratch::Mark mark(scratch);
  ops::rms_norm(pass.backend, final_norm(pass, read_state(pass, tape.last)), final_hidden, {});
}

void mtp_backward(Pass& pass, Tape& tape, TensorView d_final, TensorView d_state) {
  const Scratch::Mark mark(pass.backend.scratch());
  pass.lists.saves.again = true;
  const int64_t layer = layer_of(pass);
  final_norm_backward(pass, tape.last, d_final, d_state);
  const LayerSaved& kept = tape.layers.front();
  if (tape.recompute.keeps_all()) return decoder_layer_backward(pass, layer, kept, d_state);
  const SavedPool::Mark saved_mark(tape.pool);
  const LayerSaved saved = save_rest(pass, layer, kept, tape.pool, tape.recompute);
  decoder_layer_again(pass, layer, saved);
  decoder_layer_backward(pass, layer, saved, d_state);
}

}  // namespace strata::model
