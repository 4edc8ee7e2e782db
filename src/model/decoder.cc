#include "model/decoder.h"

#include <cstring>

#include "model/block.h"
#include "model/embedding.h"

namespace strata::model {
namespace {

void keep_hidden_state(Pass& pass, TensorView hidden_states, int64_t index, TensorView x) {
  if (!hidden_states.empty()) ops::copy(pass.backend, x, hidden_states.at(index));
}

// One layer in inference or with full recompute: all but what is kept is gone when it returns.
void forward_and_forget(Pass& pass, int64_t layer, const LayerActivations& kept, TensorView out) {
  const Scratch::Mark mark(pass.backend.scratch());
  decoder_layer_forward(pass, layer, take_activations(pass, layer, kept), out);
}

}  // namespace

void decoder_forward(Pass& pass, Tape* tape, TensorView hidden_states, TensorView final_hidden) {
  Scratch& scratch = pass.backend.scratch();
  const ModelConfig& config = pass.weights.config();
  const Shape shape = {pass.num_tokens(), config.hidden_size};
  if (tape != nullptr) tape->layers.clear();
  TensorView x = scratch.take(pass.dtype(), shape);
  TensorView other = tape == nullptr ? scratch.take(pass.dtype(), shape) : TensorView();
  embedding_forward(pass, x);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    keep_hidden_state(pass, hidden_states, layer, x);
    if (tape == nullptr) {
      const Scratch::Mark mark(scratch);
      forward_and_forget(pass, layer, take_kept(pass, layer, x), other);
      std::swap(x, other);
      continue;
    }
    const TensorView out = scratch.take(pass.dtype(), shape);
    if (tape->recompute == Recompute::kFull) {
      tape->layers.push_back(take_kept(pass, layer, x));
      forward_and_forget(pass, layer, tape->layers.back(), out);
      tape->layers.back().routing.known = true;
    } else {
      tape->layers.push_back(take_activations(pass, layer, take_kept(pass, layer, x)));
      decoder_layer_forward(pass, layer, tape->layers.back(), out);
    }
    x = out;
  }
  if (tape != nullptr) tape->last = x;
  ops::rms_norm(pass.backend, norm_args(pass, x, pass.weights.final_norm()), final_hidden, {});
  keep_hidden_state(pass, hidden_states, config.num_layers, final_hidden);
}

void decoder_backward(Pass& pass, const Tape& tape, TensorView d_final) {
  Scratch& scratch = pass.backend.scratch();
  const Scratch::Mark mark(scratch);
  const TensorView d = scratch.take(DType::kF32, {d_final.rows(), d_final.cols()});
  std::memset(d.data, 0, static_cast<size_t>(d.num_bytes()));
  // final_hidden = norm(last)
  ops::rms_norm_backward(pass.backend, norm_args(pass, tape.last, pass.weights.final_norm()), {},
                         d_final, d, base_gradient(pass, pass.weights.final_norm_index()));
  for (auto layer = static_cast<int64_t>(tape.layers.size()) - 1; layer >= 0; --layer) {
    const LayerActivations& kept = tape.layers[static_cast<size_t>(layer)];
    const Scratch::Mark layer_mark(scratch);
    if (tape.recompute == Recompute::kFull) {
      const LayerActivations acts = take_activations(pass, layer, kept);
      decoder_layer_forward(pass, layer, acts, {});
      decoder_layer_backward(pass, layer, acts, d);
    } else {
      decoder_layer_backward(pass, layer, kept, d);
    }
  }
  embedding_backward(pass, d);
}

}  // namespace strata::model
