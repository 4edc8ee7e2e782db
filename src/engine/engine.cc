// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/offload_room.h"
#include "base/env.h"
#include "base/error.h"
#include "base/trace.h"
#include "engine/sampling/sampling_loop.h"
#include "ops/elementwise.h"

namespace strata::engine {
Engine::Engine(std::unique_ptr<Backend> backend, model::LoadedModel model,
               const EngineOptions& options)
    : options_(checked(options)),
      model_(std::move(model)),
      room_(std::move(backend), model_.config),
      cache_layout_(model_.config, model_.weights->compute_dtype(), options_.page_size,
                    options_.draft_tokens),
      kv_pool_(room_.backend(), std::max<int64_t>(64, cache_layout_.page_bytes()),
               cache_layout_.page_size(), options_.max_pages),
      state_pool_(room_.backend(), "states of sequences",
                  std::max<int64_t>(64, cache_layout_.state_bytes()), options_.max_states) {
  CHECK(options_.draft_tokens == 0 || model_.config.use_mtp);
}

void Engine::set_limits(int64_t pass_tokens, int64_t max_pages, int64_t max_states,
                        int64_t pass_bytes) {
  CHECK(pass_tokens >= 1 && max_pages >= 1 && max_states >= 0, pass_tokens, max_pages, max_states);
  options_.pass_tokens = options_.prefill_tokens = pass_tokens;
  options_.max_pages = max_pages;
  options_.max_states = max_states;
  options_.pass_bytes = pass_bytes;
  kv_pool_.set_max_slabs(max_pages);
  state_pool_.set_max_slabs(max_states);
}

api::AdapterSlot Engine::create_adapter(const std::vector<model::LoraModuleSpec>& specs,
                                        uint64_t seed) {
  int32_t slot = 1;
  while (adapters_.contains(slot)) ++slot;
  auto adapter = std::make_unique<model::LoraAdapter>(backend(), *model_.weights, specs);
  adapter->initialise(seed);
  adapter->refresh(backend());
  adapters_[slot] = std::move(adapter);
  return api::AdapterSlot{slot};
}

api::AdapterSlot Engine::load_adapter(const std::string& dir) {
  auto adapter = model::load_adapter(backend(), model_, dir);
  int32_t slot = 1;
  while (adapters_.contains(slot)) ++slot;
  adapters_[slot] = std::move(adapter);
  return api::AdapterSlot{slot};
}

void Engine::save_adapter(api::AdapterSlot slot, const std::string& dir) const {
  model::save_adapter(adapter(slot), dir, model_.dir);
}

void Engine::clear_adapter(api::AdapterSlot slot) {
  static_cast<void>(adapter(slot));  // an Error when the slot is free
  adapters_.erase(static_cast<int32_t>(slot));
}

model::LoraAdapter& Engine::adapter(api::AdapterSlot slot) const {
  const auto found = adapters_.find(static_cast<int32_t>(slot));
  if (found == adapters_.end()) {
    throw Error(ErrorCode::kNotFound, fmt::format("adapter {}: no such adapter; there are {}",
                                                  static_cast<int32_t>(slot), adapters_.size()));
  }
  return *found->second;
}

model::LoraAdapter* Engine::adapter_or_base(api::AdapterSlot slot) const {
  return slot == api::AdapterSlot::kBase ? nullptr : &adapter(slot);
}

train::BaseTrainer& Engine::base_trainer() {
  if (!base_trainer_)
    base_trainer_ = std::make_unique<train::BaseTrainer>(backend(), *model_.weights);
  return *base_trainer_;
}

void Engine::enable_base_steps(const train::BaseStep& how) {
  const auto read = [this](size_t index, TensorView out) {
    if (model_.checkpoint != nullptr) {
      model::read_stored(backend(), model_, index, out);
    } else {
      model_.weights->read(backend(), index, 0, out);
    }
  };
  base_trainer().enable_steps(read, how);
}

api::StepResult Engine::step(api::AdapterSlot slot, const api::AdamW& adamw) {
  const TraceSpan span("optimizer step", "slot", static_cast<int64_t>(slot));
  if (slot != api::AdapterSlot::kBase) return train::step_adapter(backend(), adapter(slot), adamw);
  enable_base_steps();
  return base_trainer_->step(backend(), *model_.weights, adamw);
}

void Engine::prepare(const api::Batch& batch, api::TensorSink* sink) {
  if (!batch.checked) check(batch);
  CHECK(sink != nullptr || !(batch.want_hidden_states || batch.want_logits));
  int64_t total = 0;
  for (const api::Sequence& sequence : batch.sequences) total += std::ssize(sequence.datum->tokens);
  const model::ModelConfig& c = model_.config;
  const model::ModelWeights& weights = *model_.weights;
  if (batch.want_hidden_states) {
    const int64_t entries = weights.part().size() + (weights.ends() ? 1 : 0);
    sink->add("hidden_states", {entries, total, c.state_width()});
    if (c.streams && weights.ends()) sink->add("final_hidden", {total, c.hidden_size});
  }
  if (batch.want_logits && weights.ends()) sink->add("logits", {total, c.vocab_size});
  if (batch.want_logits && batch.mtp_weight > 0.0f && weights.ends()) {
    sink->add("mtp_logits", {total, c.vocab_size});
  }
  if (batch.gradients == api::Gradients::kAdapters) {
    for (const api::Sequence& sequence : batch.sequences) {
      if (!sequence.gradients) continue;
      if (model::LoraAdapter* used = adapter_or_base(sequence.slot)) used->enable_training();
    }
  }
  if (batch.gradients == api::Gradients::kParameters) base_trainer();
}

api::BatchResult Engine::run(const api::Batch& batch, api::TensorSink* sink) {
  prepare(batch, sink);
  check_memory(batch);

  api::BatchResult result;
  result.sequences.resize(batch.sequences.size());
  int64_t first_row = 0;
  for (size_t first = 0; first < batch.sequences.size();) {
    size_t last = first;
    int64_t tokens = 0;
    while (last < batch.sequences.size()) {
      const int64_t count = std::ssize(batch.sequences[last].datum->tokens);
      if (last > first && tokens + count > options_.pass_tokens) break;
      if (batch.sequences[last].gradients != batch.sequences[first].gradients) break;
      tokens += count;
      ++last;
    }
    run_part(batch, first, last, first_row, result, sink);
    ++result.num_passes;
    first_row += tokens;
    first = last;
  }
  for (const api::SequenceResult& sequence : result.sequences) {
    for (const float loss : sequence.losses) result.loss_sum += static_cast<double>(loss);
    for (const float loss : sequence.mtp_losses) result.mtp_loss_sum += static_cast<double>(loss);
    for (const float loss : sequence.indexer_losses)
      result.indexer_loss_sum += static_cast<double>(loss);
  }
  return result;
}

// Counts the pass, with full recompute where it would take too much without, and with the layers'
// inputs in files.
void Engine::fit(PassWork& work, size_t first) {
  const auto pass = [&](Backend& backend) { run_pass(backend, *this, work, micro_batch_.state()); };
  const auto too_much = [&] {
    return options_.pass_bytes > 0 && room_.count(pass).total() > options_.pass_bytes;
  };
  if (options_.pass_bytes == 0) room_.count(pass);
  if (!too_much()) return;
  if (work.backward()) work.recompute = model::Recompute::kFull;
  if (!too_much()) return;
  if (work.backward() && !options_.offload.empty()) {
    work.recompute = least_recompute();
    if (!too_much()) return;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("sequences[{}]: a pass of {} tokens takes {} bytes{}, and a pass may take {}; "
                  "split the sequence, or give more memory (--memory)",
                  first, micro_batch_.builder().num_tokens(), last_plan().total(),
                  work.backward() ? " with full recompute" : "", options_.pass_bytes));
}

// Room in files for the pass that was counted last.
void Engine::book_files() {
  const int64_t bytes = last_plan().file_bytes;
  if (bytes == 0) return;
  if (backend().offload() == nullptr) {
    backend().offload_to(options_.offload.empty() ? env_temporary_folder() : options_.offload);
  }
  backend().offload()->book(bytes);
}

// Sequences beyond pass_tokens run alone: whether each fits is known before the first pass, and so
// is whether the disk has the room.
void Engine::check_memory(const api::Batch& batch) {
  if (options_.pass_bytes == 0) return;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    if (std::ssize(batch.sequences[s].datum->tokens) <= options_.pass_tokens) continue;
    PassWork work = micro_batch_.lay_out(*this, batch, s, s + 1);
    fit(work, s);
    book_files();
  }
}

void Engine::run_part(const api::Batch& batch, size_t first, size_t last, int64_t first_row,
                      api::BatchResult& result, api::TensorSink* sink) {
  PassWork work = micro_batch_.lay_out(*this, batch, first, last);
  work.first_row = first_row;
  work.sink = sink;
  fit(work, first);
  book_files();
  room_.book(last_plan());
  run_pass(backend(), *this, work, micro_batch_.state());
  if (!batch.want_loss) return;
  micro_batch_.note_gradients(*this, batch);
  micro_batch_.give_losses(batch, result);
}

}  // namespace strata::engine
