#include "engine/pass.h"

#include <cstring>

#include "engine/engine.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

void write_hidden_states(Backend& backend, const PassWork& work, TensorView states,
                         TensorView final_hidden) {
  api::NamedTensor& out = work.sink->at("hidden_states");
  const int64_t total = out.shape[1];
  const int64_t width = states.cols();
  for (int64_t i = 0; i < states.shape[0]; ++i) {
    std::memcpy(out.values.data() + (i * total + work.first_row) * width, states.at(i).data,
                static_cast<size_t>(states.at(i).num_bytes()));
  }
  if (final_hidden.empty()) return;
  float* rows = work.sink->at("final_hidden").values.data() + work.first_row * final_hidden.cols();
  ops::copy(backend, final_hidden, TensorView(rows, DType::kF32, final_hidden.shape));
}

void write_logits(model::Pass& pass, const PassWork& work, TensorView hidden, PassState& state) {
  api::NamedTensor& out = work.sink->at("logits");
  const int64_t vocab = pass.weights.config().vocab_size;
  state.all_rows.assign(static_cast<size_t>(pass.num_tokens()), 1);
  model::RowChunks& chunks = state.logit_chunks;
  chunks.start(pass, state.all_rows);
  for (auto rows = chunks.next(); !rows.empty(); rows = chunks.next()) {
    const TensorView chunk = hidden.slice_rows(rows.front(), rows.back() + 1);
    const TensorView logits(out.values.data() + (work.first_row + rows.front()) * vocab,
                            DType::kF32, {static_cast<int64_t>(rows.size()), vocab});
    model::head_forward(pass, chunks.groups(), chunk, {}, logits);
  }
}

}  // namespace

void run_pass(Backend& backend, Engine& engine, const PassWork& work, PassState& state) {
  Scratch& scratch = backend.scratch();
  const Scratch::Mark mark(scratch);
  model::Pass pass = work.builder.build(backend, *engine.model().weights, engine.room().ropes(),
                                        engine.cache_layout());
  pass.adapter_gradients = work.adapter_gradients;
  pass.base_gradients = work.base_gradients;
  const model::ModelConfig& c = engine.config();
  const Shape shape = {pass.num_tokens(), c.hidden_size};
  const TensorView hidden = scratch.take(pass.dtype(), shape, "final_hidden");
  const TensorView states =
      work.want_hidden_states
          ? scratch.take(DType::kF32, {c.num_layers() + 1, pass.num_tokens(), c.state_width()},
                         "hidden_states")
          : TensorView();
  state.tape.recompute = work.recompute;
  model::decoder_forward(pass, state.tape, work.backward(), states, hidden);
  if (work.want_hidden_states && !backend.is_counting()) {
    // Of streams the last entry is not what the final norm made, even where there is but one.
    write_hidden_states(backend, work, states, c.streams ? hidden : TensorView());
  }
  if (work.want_logits) write_logits(pass, work, hidden, state);
  if (!work.want_loss) return;
  const TensorView d_hidden =
      work.backward() ? scratch.take(DType::kF32, shape, "final_hidden") : TensorView();
  state.loss_pass.run(pass, work.inputs, hidden, work.logprobs, work.losses, d_hidden);
  if (work.backward()) model::decoder_backward(pass, state.tape, d_hidden);
}

}  // namespace strata::engine
