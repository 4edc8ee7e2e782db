#include "model/decoder.h"

#include <utility>

#include "model/embedding.h"
#include "model/residual.h"

namespace strata::model {
namespace {

constexpr ScratchTag kInputTag = "decoder_layer_input";

void keep_hidden_state(Pass& pass, TensorView hidden_states, int64_t index, TensorView x) {
  if (!hidden_states.empty()) ops::copy(pass.backend, x, hidden_states.at(index));
}

// One layer in inference or with full recompute: all but what is kept is gone when it returns.
void forward_and_forget(Pass& pass, int64_t layer, const LayerSaved& kept, SavedPool& pool,
                        TensorView out) {
  const Scratch::Mark mark(pass.backend.scratch());
  const SavedPool::Mark saved_mark(pool);
  decoder_layer_forward(pass, layer, save_layer(pass, layer, kept, pool), out);
}

ops::RmsNormArgs final_norm(const Pass& pass, TensorView x) {
  return norm_args(x, pass.weights.final_norm(), pass.weights.config().rms_norm_eps);
}

}  // namespace

void decoder_forward(Pass& pass, Tape& tape, bool wants_backward, TensorView hidden_states,
                     TensorView final_hidden) {
  Scratch& scratch = pass.backend.scratch();
  const ModelConfig& config = pass.weights.config();
  const Shape shape = {pass.num_tokens(), config.hidden_size};
  tape.layers.clear();
  tape.pool.clear();
  TensorView x = scratch.take(pass.dtype(), shape, kInputTag);
  TensorView other = wants_backward ? TensorView() : scratch.take(pass.dtype(), shape, kInputTag);
  embedding_forward(pass, x);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    keep_hidden_state(pass, hidden_states, layer, x);
    if (!wants_backward) {
      const Scratch::Mark mark(scratch);
      const SavedPool::Mark saved_mark(tape.pool);
      forward_and_forget(pass, layer, keep_layer(pass, layer, x, tape.pool), tape.pool, other);
      std::swap(x, other);
      continue;
    }
    const TensorView out = scratch.take(pass.dtype(), shape, kInputTag);
    const LayerSaved kept = keep_layer(pass, layer, x, tape.pool);
    if (tape.recompute == Recompute::kFull) {
      tape.layers.push_back(kept);
      forward_and_forget(pass, layer, kept, tape.pool, out);
    } else {
      tape.layers.push_back(save_layer(pass, layer, kept, tape.pool));
      decoder_layer_forward(pass, layer, tape.layers.back(), out);
    }
    x = out;
  }
  tape.last = x;
  ops::rms_norm(pass.backend, final_norm(pass, x), final_hidden, {});
  keep_hidden_state(pass, hidden_states, config.num_layers(), final_hidden);
}

void decoder_backward(Pass& pass, Tape& tape, TensorView d_final) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const TensorView d = zeros(pass, {d_final.rows(), d_final.cols()});
  // final_hidden = norm(last)
  ops::rms_norm_backward(pass.backend, final_norm(pass, tape.last), {}, d_final, d,
                         pass.base_gradient(pass.weights.final_norm_index()));
  for (auto layer = static_cast<int64_t>(tape.layers.size()) - 1; layer >= 0; --layer) {
    const LayerSaved& kept = tape.layers[static_cast<size_t>(layer)];
    const Scratch::Mark layer_mark(scratch);
    if (tape.recompute == Recompute::kFull) {
      const SavedPool::Mark saved_mark(tape.pool);
      const LayerSaved saved = save_layer(pass, layer, kept, tape.pool);
      decoder_layer_forward(pass, layer, saved, {});
      decoder_layer_backward(pass, layer, saved, d);
    } else {
      decoder_layer_backward(pass, layer, kept, d);
    }
  }
  embedding_backward(pass, d);
}

}  // namespace strata::model
