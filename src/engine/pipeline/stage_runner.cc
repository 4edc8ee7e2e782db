// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/stage_runner.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/trace.h"

namespace strata::engine {

using schedule::Action;
using schedule::Op;

std::vector<size_t> cut_lengths(std::span<const int64_t> lengths, int num_microbatches) {
  const auto num_sequences = std::ssize(lengths);
  const auto count = std::min<int64_t>(num_microbatches, num_sequences);
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<size_t> firsts;
  int64_t rows = 0;
  int64_t s = 0;
  for (int64_t m = 0; m < count; ++m) {
    firsts.push_back(static_cast<size_t>(s));
    const int64_t others = count - m - 1;  // each of which wants one, at least
    const int64_t end = total * (m + 1) / count;
    for (bool is_first = true; s < num_sequences - others; is_first = false, ++s) {
      const int64_t tokens = lengths[static_cast<size_t>(s)];
      if (!is_first && others > 0 && rows + tokens / 2 > end) break;
      rows += tokens;
    }
  }
  firsts.push_back(lengths.size());
  return firsts;
}

BatchCuts cut_batch(const api::Batch& batch, int num_microbatches) {
  std::vector<int64_t> lengths;
  for (const api::Sequence& sequence : batch.sequences) {
    lengths.push_back(std::ssize(sequence.datum->tokens));
  }
  BatchCuts cuts = {.firsts = cut_lengths(lengths, num_microbatches), .first_rows = {}};
  int64_t rows = 0;
  for (size_t s = 0, m = 0; m < cuts.firsts.size(); ++m) {
    for (; s < cuts.firsts[m]; ++s) rows += lengths[s];
    cuts.first_rows.push_back(rows);
  }
  return cuts;
}

StageRunner::StageRunner(Comm& comm, const PipelinePlan& plan, int stage,
                         std::unique_ptr<Engine> engine)
    : comm_(comm),
      plan_(plan),
      stage_(stage),
      engine_(std::move(engine)),
      defers_(plan.defers(stage)) {}

void StageRunner::begin(const api::Batch& batch, const BatchCuts& cuts, api::BatchResult& result) {
  batch_ = &batch;
  cuts_ = &cuts;
  result_ = &result;
  sink_ = {};
  engine_->prepare(batch, &sink_);
}

void StageRunner::run(const Action& action) {
  CHECK(action.stage == stage_, action.stage, stage_);
  switch (action.op) {
    case Op::kForward:
      return forward(action.microbatch);
    case Op::kBackward:
    case Op::kInputGrad:
      return backward(action);
    case Op::kWeightGrad:
      return weight_gradients(action.microbatch);
    case Op::kSendForward:
      return send(Border::kForward, action.microbatch);
    case Op::kSendBackward:
      return send(Border::kBackward, action.microbatch);
    case Op::kRecvForward:
    case Op::kRecvBackward:
      return;
  }
}

bool StageRunner::is_here(int stage) const {
  return plan_.ranks[static_cast<size_t>(stage)] == comm_.rank();
}

int64_t StageRunner::tag(Border border, int to_stage, int microbatch) const {
  const int64_t place = static_cast<int64_t>(to_stage) * plan_.table.num_microbatches + microbatch;
  return 2 * place + (border == Border::kForward ? 0 : 1);
}

TensorView StageRunner::take_crossing(Border border, int microbatch, const Shape& shape) {
  std::vector<Crossing>& all = crossings(border);
  auto free = std::find_if(all.begin(), all.end(),
                           [](const Crossing& crossing) { return crossing.microbatch < 0; });
  if (free == all.end()) free = all.emplace(free);
  const DType dtype =
      border == Border::kForward ? engine_->model().weights->compute_dtype() : DType::kF32;
  if (free->memory.bytes() < shape.num_elements() * dtype_bytes(dtype)) {
    free->memory = Tensor(engine_->backend().allocator(), dtype, shape);
  }
  free->microbatch = microbatch;
  free->tensor = TensorView(free->memory.view().data, dtype, shape);
  return free->tensor;
}

StageRunner::Crossing& StageRunner::find_crossing(Border border, int microbatch) {
  std::vector<Crossing>& all = crossings(border);
  const auto found = std::find_if(all.begin(), all.end(), [&](const Crossing& crossing) {
    return crossing.microbatch == microbatch;
  });
  CHECK(found != all.end(), stage_, microbatch);
  return *found;
}

int64_t StageRunner::border_bytes() const {
  int64_t bytes = 0;
  for (const std::vector<Crossing>& all : crossings_) {
    for (const Crossing& crossing : all) bytes += crossing.memory.bytes();
  }
  return bytes;
}

void StageRunner::send(Border border, int microbatch) {
  const TraceSpan span("send", "micro-batch", microbatch);
  const int to_stage = border == Border::kForward ? stage_ + 1 : stage_ - 1;
  Crossing& crossing = find_crossing(border, microbatch);
  comm_.send(plan_.ranks[static_cast<size_t>(to_stage)], tag(border, to_stage, microbatch),
             crossing.tensor);
  crossing.microbatch = -1;
}

void StageRunner::receive(Border border, int from_stage, int microbatch, TensorView tensor) {
  const TraceSpan span("receive", "micro-batch", microbatch);
  comm_.receive(plan_.ranks[static_cast<size_t>(from_stage)], tag(border, stage_, microbatch),
                tensor);
}

StageRunner::Flight& StageRunner::take(int microbatch) {
  auto free = std::find_if(flights_.begin(), flights_.end(),
                           [](const auto& flight) { return flight->microbatch < 0; });
  if (free == flights_.end()) {
    free = flights_.insert(free, std::make_unique<Flight>(*engine_));
  }
  (*free)->microbatch = microbatch;
  return **free;
}

StageRunner::Flight& StageRunner::find(int microbatch) {
  const auto found = std::find_if(flights_.begin(), flights_.end(), [&](const auto& flight) {
    return flight->microbatch == microbatch;
  });
  CHECK(found != flights_.end(), stage_, microbatch);
  return **found;
}

void StageRunner::end(Flight& flight) {
  flight.pass.reset();
  flight.mark.reset();
  flight.microbatch = -1;
}

void StageRunner::forward(int microbatch) {
  const TraceSpan span("F", "micro-batch", microbatch);
  Flight& flight = take(microbatch);
  const auto m = static_cast<size_t>(microbatch);
  MicroBatch& laid_out = flight.micro_batch;
  PassWork work = laid_out.lay_out(*engine_, *batch_, cuts_->firsts[m], cuts_->firsts[m + 1]);
  work.first_row = cuts_->first_rows[m];
  work.sink = &sink_;
  const PassPlan& counted = engine_->room().count_held([&](Backend& counter) {
    flight.deferred_bytes =
        count_stage_pass(counter, *engine_, work, laid_out.state(), defers_ && wants_backward());
  });
  engine_->room().book(counted);
  flight.held.reserve(counted.held_bytes);
  pass_bytes_ = std::max(pass_bytes_, counted.total());
  flight.mark.emplace(flight.held);
  {
    const Scratch::Hold hold(engine_->backend().scratch(), flight.held);
    StagePass& pass = flight.pass.emplace(engine_->backend(), *engine_, work, laid_out.state());
    if (!is_first()) receive(Border::kForward, stage_ - 1, microbatch, pass.input());
    pass.forward(is_last() ? TensorView()
                           : take_crossing(Border::kForward, microbatch, pass.border_shape()));
    pass.loss();
  }
  note_held(flight);
  if (batch_->want_loss) {
    laid_out.note_gradients(*engine_, *batch_);
    if (is_last()) laid_out.give_losses(*batch_, *result_);
  }
  if (!wants_backward()) end(flight);
  // To another rank an action of its own sends it.
  if (!is_last() && is_here(stage_ + 1)) send(Border::kForward, microbatch);
}

// What was taken, and not what was counted.
void StageRunner::note_held(const Flight& flight) {
  if (flight.held.high_water() <= held_bytes_) return;
  held_bytes_ = flight.held.high_water();
  const std::span<const Scratch::Use> uses = flight.held.peak_uses();
  held_uses_.assign(uses.begin(), uses.end());
}

model::DeferredProducts& StageRunner::defer(const Flight& flight) {
  auto free = std::find_if(waiting_.begin(), waiting_.end(),
                           [](const auto& waiting) { return waiting->microbatch < 0; });
  if (free == waiting_.end()) {
    free = waiting_.insert(free, std::make_unique<Waiting>(*engine_));
  }
  Waiting& waiting = **free;
  waiting.microbatch = flight.microbatch;
  waiting.memory.reserve(flight.deferred_bytes);
  waiting.mark.emplace(waiting.memory);
  return waiting.products;
}

void StageRunner::weight_gradients(int microbatch) {
  const TraceSpan span("W", "micro-batch", microbatch);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& waiting) {
    return waiting->microbatch == microbatch;
  });
  CHECK(found != waiting_.end(), stage_, microbatch);
  Waiting& waiting = **found;
  waiting.products.run(engine_->backend());
  deferred_bytes_ = std::max(deferred_bytes_, waiting.memory.high_water());
  waiting.mark.reset();
  waiting.microbatch = -1;
}

void StageRunner::backward(const Action& action) {
  const int microbatch = action.microbatch;
  const bool defers = action.op == Op::kInputGrad;
  const TraceSpan span(defers ? "I" : "B", "micro-batch", microbatch);
  Flight& flight = find(microbatch);
  const TensorView d = take_crossing(Border::kBackward, microbatch, flight.pass->border_shape());
  if (!is_last()) receive(Border::kBackward, stage_ + 1, microbatch, d);
  {
    const Scratch::Hold hold(engine_->backend().scratch(), flight.held);
    flight.pass->backward(d, defers ? &defer(flight) : nullptr);
  }
  note_held(flight);
  end(flight);
  if (is_first()) {
    find_crossing(Border::kBackward, microbatch).microbatch = -1;
  } else if (is_here(stage_ - 1)) {
    send(Border::kBackward, microbatch);
  }
}

}  // namespace strata::engine
