// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/adapter/base_numbers.h"

namespace strata::engine {
Engine::Engine(std::unique_ptr<Backend> backend, model::LoadedModel model,
               const EngineOptions& options)
    : options_(checked(options)),
      model_(std::move(model)),
      workspace_(std::move(backend), model_.config),
      cache_layout_(model_.config, model_.weights->compute_dtype(), options_.page_size,
                    options_.draft_tokens),
      kv_pool_(workspace_.backend(), std::max<int64_t>(64, cache_layout_.page_bytes()),
               cache_layout_.page_size(), options_.max_pages),
      state_pool_(workspace_.backend(), "states of sequences",
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

api::AdapterSlot Engine::put(std::unique_ptr<model::LoraAdapter> adapter) {
  int32_t slot = 1;
  while (adapters_.contains(slot)) ++slot;
  adapters_[slot] = std::move(adapter);
  return api::AdapterSlot{slot};
}

api::AdapterSlot Engine::create_adapter(const std::vector<model::LoraModuleSpec>& specs,
                                        uint64_t seed) {
  auto adapter = std::make_unique<model::LoraAdapter>(backend(), *model_.weights, specs);
  adapter->initialise(seed);
  adapter->refresh(backend());
  return put(std::move(adapter));
}

api::AdapterSlot Engine::plan_adapter(const std::vector<model::LoraModuleSpec>& specs) {
  return put(std::make_unique<model::LoraAdapter>(backend(), *model_.weights, specs));
}

api::AdapterSlot Engine::load_adapter(const std::string& dir) {
  return put(model::load_adapter(backend(), model_, dir));
}

void Engine::save_adapter(api::AdapterSlot slot, const std::string& dir) const {
  model::save_adapter(adapter(slot), dir, model_.dir, model::numbers_metadata(model_));
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
    base_trainer_ = std::make_unique<train::BaseTrainer>(backend(), *model_.weights, share_);
  return *base_trainer_;
}

void Engine::enable_base_steps(const train::BaseStep& how) {
  const auto read = [this](size_t index, int64_t first_row, TensorView out) {
    const model::Parameter& parameter = model_.weights->table()[index];
    if (model_.checkpoint == nullptr) {
      model_.weights->read(backend(), index, first_row, out);
    } else if (parameter.is_matrix()) {
      model::read_stored_rows(backend(), model_, index, first_row, out);
    } else {
      model::read_stored(backend(), model_, index, out);
    }
  };
  base_trainer().enable_steps(read, how);
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

}  // namespace strata::engine
