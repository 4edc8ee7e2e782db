// SPDX-License-Identifier: Apache-2.0
#include "engine/pipeline/stage_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "api/context.h"
#include "backend/offload_space.h"
#include "base/check.h"
#include "base/env.h"
#include "base/error.h"
#include "base/trace.h"
#include "engine/pipeline/dealt_rows.h"
#include "model/expert_ranks.h"
#include "model/tensor_ranks.h"

namespace strata::engine {

using schedule::Action;
using schedule::Op;

StageRunner::StageRunner(Comm& comm, const PipelinePlan& plan, int stage, Engine& engine,
                         const StageChains& chains)
    : comm_(comm),
      plan_(plan),
      stage_(stage),
      engine_(engine),
      chains_(chains),
      defers_(plan.defers_weight_gradients(stage)),
      has_flights_(plan.has_flights()) {}

// What moves may still be under way for what flights had in files.
StageRunner::~StageRunner() {
  OffloadSpace* const files = engine_.backend().offload();
  if (files != nullptr) files->queue().wait();
}

void StageRunner::begin_batch(const api::Batch& batch, api::BatchResult& result,
                              api::TensorSink* sink) {
  batch_ = &batch;
  result_ = &result;
  own_sink_ = {};
  sink_ = is_first() && is_last() ? sink : &own_sink_;
  engine_.prepare_batch(batch, sink_);
  book_long_sequences();
}

// Units beyond pass_tokens run alone: whether each fits is known before the first pass, and so
// is whether the disk has the space.
void StageRunner::book_long_sequences() {
  if (engine_.options().pass_bytes == 0) return;
  size_t end = 0;
  for (size_t first = 0; first < batch_->sequences.size(); first = end) {
    end = end_of_unit(*batch_, first);
    int64_t tokens = 0;
    for (size_t s = first; s < end; ++s) tokens += std::ssize(batch_->sequences[s].datum->tokens);
    if (tokens <= engine_.options().pass_tokens) continue;
    Flight& flight = claim_flight(0);
    PassWork work = flight.micro_batch.collate(engine_, *batch_, first, end);
    const size_t alone[] = {first, end};
    if (deals_rows(num_dealing(plan_, *batch_))) {
      lay_out_dealt_rows(engine_, *batch_, alone, plan_.expert, flight.dealt);
      work.dealt = &flight.dealt;
    }
    choose_recompute(flight, work, first);
    book_files(flight);
    free_flight(flight);
  }
}

const PassPlan& StageRunner::count_memory(Flight& flight, const PassWork& work) {
  PassState& state = flight.micro_batch.state();
  if (!has_flights_) {
    return engine_.workspace().measure(
        [&](Backend& counter) { count_pass_memory(counter, engine_, work, state); });
  }
  return engine_.workspace().measure_held([&](Backend& counter) {
    return count_stage_pass(counter, engine_, work, state, defers_ && work.trains());
  });
}

// Ranks that divide a layer make the same again, though one may have a little more than another.
bool StageRunner::all_alike_say(bool own) const {
  if (engine_.options().pass_bytes == 0) return own;
  const model::ModelWeights& weights = *engine_.model().weights;
  if (const model::ExpertRanks* ranks = weights.expert_ranks()) own = ranks->all_say(own);
  if (const model::TensorRanks* ranks = weights.tensor_ranks()) own = ranks->all_say(own);
  return own;
}

// Counts the pass, with full recompute where it would take too much without, and with the layers'
// inputs in files.
void StageRunner::choose_recompute(Flight& flight, PassWork& work, size_t first) {
  const EngineOptions& options = engine_.options();
  std::optional<std::string> fault;
  const auto fits = [&] {
    const PassPlan& counted = count_memory(flight, work);
    fault = api::find_pass_memory_fault(flight.micro_batch.builder().num_tokens(),
                                        counted.total() + counted.kept(), work.backward(),
                                        options.pass_bytes > 0 ? options.pass_bytes : INT64_MAX);
    return all_alike_say(!fault);
  };
  if (fits()) return;
  if (work.backward()) work.recompute = model::Recompute::kFull;
  if (fits()) return;
  if (work.backward() && !options.offload.empty()) {
    work.recompute = engine_.least_recompute();
    if (fits()) return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("sequences[{}]: {}", first,
                          fault.value_or("another rank has too little memory for them")));
}

// Space in files for the pass that was counted last.
void StageRunner::book_files(Flight& flight) {
  const int64_t bytes = engine_.last_plan().file_bytes;
  if (bytes == 0) return;
  Backend& backend = engine_.backend();
  const std::string& folder = engine_.options().offload;
  if (backend.offload() == nullptr) {
    backend.offload_to(folder.empty() ? env_temporary_folder() : folder);
  }
  if (!has_flights_) return backend.offload()->book(bytes);
  if (!flight.files) flight.files = backend.offload()->make_scratch();
  backend.offload()->book(*flight.files, bytes);
}

StageRunner::Holds::Holds(Backend& backend, Flight& flight)
    : memory(backend.scratch(), flight.held) {
  if (flight.files) files.emplace(backend.file_scratch(), *flight.files);
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
      return run_weight_gradients(action.microbatch);
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

TensorView StageRunner::claim_tensor(Border border, int microbatch, const Shape& shape) {
  std::vector<Crossing>& all = crossings(border);
  auto free = std::find_if(all.begin(), all.end(),
                           [](const Crossing& crossing) { return crossing.microbatch < 0; });
  if (free == all.end()) free = all.emplace(free);
  const DType dtype =
      border == Border::kForward ? engine_.model().weights->compute_dtype() : DType::kF32;
  // A pass without tokens has a place too, so that its messages have one to go to.
  const int64_t count = std::max<int64_t>(1, shape.num_elements());
  if (free->memory.bytes() < count * dtype_bytes(dtype)) {
    free->memory = Tensor(engine_.backend().allocator(), dtype, {count});
  }
  free->microbatch = microbatch;
  free->indexer_losses.clear();
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
  const int to = plan_.ranks[static_cast<size_t>(to_stage)];
  const int64_t own_tag = tag(border, to_stage, microbatch);
  comm_.send(to, own_tag, crossing.tensor);
  const std::span<const float> losses = crossing.indexer_losses;
  if (!losses.empty())
    comm_.send_bytes(to, own_tag, losses.data(), static_cast<int64_t>(losses.size_bytes()));
  crossing.microbatch = -1;
}

void StageRunner::receive(Border border, int from_stage, int microbatch, TensorView tensor,
                          std::span<float> indexer_losses) {
  const TraceSpan span("receive", "micro-batch", microbatch);
  const int from = plan_.ranks[static_cast<size_t>(from_stage)];
  const int64_t own_tag = tag(border, stage_, microbatch);
  comm_.receive(from, own_tag, tensor);
  if (indexer_losses.empty()) return;
  comm_.receive_bytes(from, own_tag, indexer_losses.data(),
                      static_cast<int64_t>(indexer_losses.size_bytes()));
}

StageRunner::Flight& StageRunner::claim_flight(int microbatch) {
  auto free = std::find_if(flights_.begin(), flights_.end(),
                           [](const auto& flight) { return flight->microbatch < 0; });
  if (free == flights_.end()) {
    free = flights_.insert(free, std::make_unique<Flight>(engine_));
  }
  (*free)->microbatch = microbatch;
  return **free;
}

StageRunner::Flight& StageRunner::find_flight(int microbatch) {
  const auto found = std::find_if(flights_.begin(), flights_.end(), [&](const auto& flight) {
    return flight->microbatch == microbatch;
  });
  CHECK(found != flights_.end(), stage_, microbatch);
  return **found;
}

void StageRunner::retire_flight(Flight& flight) {
  if (batch_->want_loss) {
    flight.micro_batch.mark_has_gradient(engine_, *batch_);
    if (is_last()) flight.micro_batch.store_logprobs_and_losses(*batch_, *result_);
    if (is_first()) flight.micro_batch.store_indexer_losses(*batch_, *result_);
  }
  free_flight(flight);
}

void StageRunner::free_flight(Flight& flight) {
  flight.pass.reset();
  flight.files_mark.reset();
  flight.mark.reset();
  flight.microbatch = -1;
}

void StageRunner::end_batch() {
  for (const auto& flight : flights_) free_flight(*flight);
  std::erase_if(waiting_, [](const auto& waiting) { return waiting->microbatch >= 0; });
  for (std::vector<Crossing>& all : crossings_) {
    for (Crossing& crossing : all) crossing.microbatch = -1;
  }
}

// The pass of a micro-batch, with the rows that its experts have of those that run at once.
PassWork StageRunner::collate(Flight& flight, int microbatch) {
  PassWork work = collate_place_of_round(engine_, *batch_, *round_, round_->place_of(microbatch),
                                         flight.micro_batch);
  work.sink = sink_;
  if (!deals_rows(round_->num_dealt)) return work;
  lay_out_dealt_rows(engine_, *batch_, round_->firsts_of_group(microbatch), round_->num_at_once,
                     flight.dealt);
  work.dealt = &flight.dealt;
  return work;
}

// With the memory that it takes chosen and its turns in the chain.
PassWork StageRunner::prepare_pass_work(Flight& flight, int microbatch) {
  PassWork work = collate(flight, microbatch);
  const bool has = round_->has(microbatch);
  choose_recompute(flight, work, round_->firsts[has ? round_->place_of(microbatch) : 0]);
  book_files(flight);
  if (round_->num_dealt > 1 && work.trains()) link_gradients(flight, microbatch, work);
  return work;
}

// A pass without a sequence has a turn with its experts alone.
void StageRunner::link_gradients(Flight& flight, int microbatch, PassWork& work) {
  CHECK(!defers_ || work.base_gradients == nullptr);  // commands refuse it
  if (chains_.all != nullptr && round_->has(microbatch)) {
    flight.link = chains_.all->link(before_.passes + round_->place_of(microbatch));
    work.turns = &flight.link;
  }
  if (chains_.experts == nullptr) return;
  flight.expert_link = chains_.experts->link(before_.groups + round_->place_of_group(microbatch));
  work.expert_turns = &flight.expert_link;
}

// Memory and files for the pass that was counted last, from where its flight takes.
void StageRunner::book_counted_memory(Flight& flight) {
  Backend& backend = engine_.backend();
  const PassPlan& counted = engine_.last_plan();
  engine_.workspace().book(counted);
  pass_bytes_ = std::max(pass_bytes_, counted.total());
  flight.held.book(counted.held_bytes);
  flight.deferred_bytes = counted.deferred_bytes;
  flight.mark.emplace(has_flights_ ? flight.held : backend.scratch());
  if (flight.files) {
    flight.files_mark.emplace(*flight.files);
  } else if (!has_flights_ && backend.has_files()) {
    flight.files_mark.emplace(backend.file_scratch());
  }
}

void StageRunner::forward(int microbatch) {
  const TraceSpan span("F", "micro-batch", microbatch);
  Flight& flight = claim_flight(microbatch);
  const PassWork work = prepare_pass_work(flight, microbatch);
  book_counted_memory(flight);
  {
    Backend& backend = engine_.backend();
    std::optional<Holds> holds;
    if (has_flights_) holds.emplace(backend, flight);
    StagePass& pass = flight.pass.emplace(backend, engine_, work, flight.micro_batch.state());
    pass.count_layers_in(layers_done_);
    if (!is_first()) receive(Border::kForward, stage_ - 1, microbatch, pass.input());
    pass.forward(is_last() ? TensorView()
                           : claim_tensor(Border::kForward, microbatch, pass.border_shape()));
    pass.compute_losses_and_gradients();
  }
  record_peak_held(flight);
  if (!work.trains()) retire_flight(flight);
  // To another rank an action of its own sends it.
  if (!is_last() && is_here(stage_ + 1)) send(Border::kForward, microbatch);
}

// What was taken, and not what was counted.
void StageRunner::record_peak_held(const Flight& flight) {
  if (flight.files) offloaded_bytes_ = std::max(offloaded_bytes_, flight.files->high_water());
  if (flight.held.high_water() <= held_bytes_) return;
  held_bytes_ = flight.held.high_water();
  const std::span<const Scratch::Use> uses = flight.held.peak_uses();
  held_uses_.assign(uses.begin(), uses.end());
}

model::DeferredProducts& StageRunner::claim_deferred_products(const Flight& flight) {
  auto free = std::find_if(waiting_.begin(), waiting_.end(),
                           [](const auto& waiting) { return waiting->microbatch < 0; });
  if (free == waiting_.end()) {
    free = waiting_.insert(free, std::make_unique<Waiting>(engine_));
  }
  Waiting& waiting = **free;
  waiting.microbatch = flight.microbatch;
  waiting.memory.book(flight.deferred_bytes);
  waiting.mark.emplace(waiting.memory);
  return waiting.products;
}

StageRunner::Waiting& StageRunner::find_waiting(int microbatch) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& waiting) {
    return waiting->microbatch == microbatch;
  });
  CHECK(found != waiting_.end(), stage_, microbatch);
  return **found;
}

void StageRunner::run_weight_gradients(int microbatch) {
  const TraceSpan span("W", "micro-batch", microbatch);
  Waiting& waiting = find_waiting(microbatch);
  waiting.products.run_deferred(engine_.backend());
  deferred_bytes_ = std::max(deferred_bytes_, waiting.memory.high_water());
  waiting.mark.reset();
  waiting.microbatch = -1;
}

void StageRunner::backward(const Action& action) {
  const int microbatch = action.microbatch;
  const bool defers = action.op == Op::kInputGrad;
  const TraceSpan span(defers ? "I" : "B", "micro-batch", microbatch);
  Flight& flight = find_flight(microbatch);
  Scratch& scratch = engine_.backend().scratch();
  const Shape shape = flight.pass->gradient_shape();
  const TensorView d = has_flights_ ? claim_tensor(Border::kBackward, microbatch, shape)
                                    : scratch.take(DType::kF32, shape);
  const std::span<float> losses = flight.micro_batch.indexer_losses();  // added to layer by layer
  if (!is_last()) receive(Border::kBackward, stage_ + 1, microbatch, d, losses);
  {
    std::optional<Holds> holds;
    if (has_flights_) holds.emplace(engine_.backend(), flight);
    flight.pass->backward(d, defers ? &claim_deferred_products(flight) : nullptr);
  }
  record_peak_held(flight);
  if (!is_first()) {
    find_crossing(Border::kBackward, microbatch)
        .indexer_losses.assign(losses.begin(), losses.end());
  }
  retire_flight(flight);
  hand_off_gradient(microbatch);
}

// To another rank an action of its own sends it.
void StageRunner::hand_off_gradient(int microbatch) {
  if (is_first()) {
    if (has_flights_) find_crossing(Border::kBackward, microbatch).microbatch = -1;
  } else if (is_here(stage_ - 1)) {
    send(Border::kBackward, microbatch);
  }
}

}  // namespace strata::engine
