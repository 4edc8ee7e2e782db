#include "engine/pass.h"

#include <span>

#include "engine/engine.h"
#include "ops/elementwise.h"

namespace strata::engine {
namespace {

// As many values of a result as `part` has, from value `first` on.
std::span<float> rows_of(api::NamedTensor& out, int64_t first, const TensorView& part) {
  return std::span(out.values)
      .subspan(static_cast<size_t>(first), static_cast<size_t>(part.shape.num_elements()));
}

void write_hidden_states(Backend& backend, const PassWork& work, TensorView states,
                         TensorView final_hidden) {
  api::NamedTensor& out = work.sink->at("hidden_states");
  const int64_t total = out.shape[1];
  const int64_t width = states.cols();
  for (int64_t i = 0; i < states.shape[0]; ++i) {
    ops::to_host(backend, states.at(i),
                 rows_of(out, (i * total + work.first_row) * width, states.at(i)));
  }
  if (final_hidden.empty()) return;
  ops::to_host(
      backend, final_hidden,
      rows_of(work.sink->at("final_hidden"), work.first_row * final_hidden.cols(), final_hidden));
}

void write_logits(model::Pass& pass, const PassWork& work, TensorView hidden, PassState& state) {
  Backend& backend = pass.backend;
  const int64_t vocab = pass.weights.config().vocab_size;
  state.all_rows.assign(static_cast<size_t>(pass.num_tokens()), 1);
  model::RowChunks& chunks = state.logit_chunks;
  chunks.start(pass, state.all_rows);
  for (auto rows = chunks.next(); !rows.empty(); rows = chunks.next()) {
    const TensorView chunk = hidden.slice_rows(rows.front(), rows.back() + 1);
    const Scratch::Mark mark(backend.scratch());
    const TensorView logits = pass.take(DType::kF32, {std::ssize(rows), vocab});
    model::head_forward(pass, chunks.groups(), chunk, {}, logits);
    if (backend.is_counting()) continue;
    ops::to_host(backend, logits,
                 rows_of(work.sink->at("logits"), (work.first_row + rows.front()) * vocab, logits));
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
  {
    const TraceSpan span = model::traced(pass, "forward", "tokens", pass.num_tokens());
    model::decoder_forward(pass, state.tape, work.backward(), states, hidden);
  }
  if (work.want_hidden_states && !backend.is_counting()) {
    // Of streams the last entry is not what the final norm made, even where there is but one.
    write_hidden_states(backend, work, states, c.streams ? hidden : TensorView());
  }
  if (work.want_logits) write_logits(pass, work, hidden, state);
  if (!work.want_loss) return;
  const TensorView d_hidden =
      work.backward() ? scratch.take(DType::kF32, shape, "final_hidden") : TensorView();
  {
    const TraceSpan span = model::traced(pass, "loss", "tokens", pass.num_tokens());
    state.loss_pass.run(pass, work.inputs, hidden, work.logprobs, work.losses, d_hidden);
  }
  if (!work.backward()) return;
  const TraceSpan span = model::traced(pass, "backward", "tokens", pass.num_tokens());
  model::decoder_backward(pass, state.tape, d_hidden);
}

}  // namespace strata::engine
