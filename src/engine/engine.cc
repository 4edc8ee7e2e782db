// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "api/context.h"
#include "api/sampling_options.h"
#include "base/error.h"
#include "model/adapter/base_numbers.h"

namespace strata::engine {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInvalidArgument, what); }

void check_ids(const std::vector<int32_t>& ids, int64_t vocab, std::string_view where,
               std::string_view field) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      fail(fmt::format("{}.{}[{}]: got id {}, want 0 to {}", where, field, i, ids[i], vocab - 1));
    }
  }
}

void check_length(size_t got, size_t tokens, std::string_view where, std::string_view field,
                  bool may_be_empty) {
  if (got == tokens || (may_be_empty && got == 0)) return;
  fail(fmt::format("{}.{}: got {} values, want {}", where, field, got, tokens));
}

// Beyond what the run's tables of RoPE are for, or its --context.
void check_positions(int64_t positions, const model::ModelConfig& config, std::string_view where) {
  if (positions <= config.most_positions) return;
  fail(fmt::format("{}: {} positions, this run has {} for a sequence{}", where, positions,
                   config.most_positions,
                   api::context_note(config.most_positions, config.max_position_embeddings)));
}

void check_at_least(int64_t value, int64_t least, std::string_view where, std::string_view field,
                    std::string_view wanted) {
  if (value < least) fail(fmt::format("{}.{}: got {}, want {}", where, field, value, wanted));
}

void check_topk(int64_t k, int64_t vocab, std::string_view where, std::string_view field) {
  if (k >= 0 && k <= vocab) return;
  fail(fmt::format("{}.{}: got {}, want 0 to {}", where, field, k, vocab));
}

// The weight of a loss in what is trained.
void check_loss_weight(float weight, std::string_view field) {
  if (weight >= 0.0f && !std::isinf(weight)) return;
  fail(fmt::format("{}: got {}, want 0 or more", field, weight));
}

void check_prompt_targets(const api::SampleRequest& request, int64_t vocab,
                          const std::string& where) {
  const api::PromptTargets& targets = request.prompt_targets;
  if (targets.empty()) return;
  const auto count = static_cast<int64_t>(targets.ids.size());
  if (targets.first.size() != request.prompt.size() || targets.first.front() != 0 ||
      targets.first.back() != count ||
      !std::is_sorted(targets.first.begin(), targets.first.end())) {
    fail(fmt::format("{}.prompt_targets: {} rows that begin at {} numbers, want {} from 0 to {}",
                     where, request.prompt.size() - 1, targets.first.size(), request.prompt.size(),
                     count));
  }
  for (size_t i = 0; i < targets.ids.size(); ++i) {
    if (targets.ids[i] < -1 || targets.ids[i] >= vocab) {
      fail(fmt::format("{}.prompt_targets[{}]: got id {}, want -1 to {}", where, i, targets.ids[i],
                       vocab - 1));
    }
  }
}

void check_sampling_options(const api::SampleRequest& request, const std::string& where) {
  for (const api::SamplingOption& option : api::kSamplingOptions) {
    const float value = request.*option.field;
    if (!option.allows(value))
      fail(fmt::format("{}.{}: got {}, want {}", where, option.name, value, option.wanted));
  }
}

void check_logit_bias(const std::vector<api::LogitBias>& biases, int64_t vocab,
                      const std::string& where) {
  if (biases.size() > api::kMostLogitBiases) {
    fail(fmt::format("{}.logit_bias: got {} tokens, the limit is {}", where, biases.size(),
                     api::kMostLogitBiases));
  }
  for (const api::LogitBias& bias : biases) {
    if (bias.token < 0 || bias.token >= vocab) {
      fail(fmt::format("{}.logit_bias: got id {}, want 0 to {}", where, bias.token, vocab - 1));
    }
    if (!(std::abs(bias.add) <= api::kMostLogitBias)) {
      fail(fmt::format("{}.logit_bias: got {} for token {}, want {} to {}", where, bias.add,
                       bias.token, -api::kMostLogitBias, api::kMostLogitBias));
    }
  }
}

void check_num_targets(const api::Datum& datum, const api::LossRow& loss,
                       const std::string& where) {
  const bool plain = loss.id == api::LossName::kCrossEntropy;
  if (datum.num_targets >= 0 && (datum.num_targets <= 1 || plain)) return;
  fail(fmt::format("{}.targets: got {} for each token, want {}", where, datum.num_targets,
                   plain ? "at least one" : "one with this loss"));
}

// Checks the lengths of what the loss reads for each token or target.
void check_loss_input_lengths(const api::Datum& datum, const api::LossRow& loss,
                              const std::string& where, bool want_loss) {
  const size_t tokens = datum.tokens.size();
  const size_t targets = tokens * static_cast<size_t>(datum.targets_per_token());
  for (const api::LossInputRow& input : api::kLossInputs) {
    const bool of_targets = input.id == api::LossInput::kWeights;
    const bool needed =
        want_loss && !of_targets &&
        std::find(loss.inputs.begin(), loss.inputs.end(), input.id) != loss.inputs.end();
    check_length(datum.inputs[input.id].size(), of_targets ? targets : tokens, where, input.name,
                 !needed);
  }
}

// What the loss takes its mean over, where it takes one.
void check_mask_has_tokens(const api::Datum& datum, const api::LossRow& loss,
                           const std::string& where) {
  if (!loss.mean_over) return;
  const std::vector<float>& mask = datum.inputs[*loss.mean_over];
  if (std::accumulate(mask.begin(), mask.end(), 0.0) > 0.0) return;
  fail(fmt::format("{}.{}: {} takes the mean over the masked tokens, and there are none", where,
                   api::row_of(*loss.mean_over).name, loss.name));
}

void check_options_ascend(const api::Loss& options, const api::LossRow& loss,
                          const std::string& where) {
  for (size_t i = 1; loss.options_ascend && i < loss.options.size(); ++i) {
    if (options.options[i - 1] > options.options[i]) {
      fail(fmt::format("{}.loss: {} exceeds {}", where, loss.options[i - 1].name,
                       loss.options[i].name));
    }
  }
}

// The two of a pair stand next to each other, and each has something that counts.
void check_pairs(const api::Batch& batch) {
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const api::Sequence& chosen = batch.sequences[s];
    const api::LossRow& loss = api::row_of(chosen.loss.name);
    if (!loss.of_pairs) continue;
    const api::Sequence* rejected =
        s + 1 < batch.sequences.size() ? &batch.sequences[s + 1] : nullptr;
    if (rejected == nullptr || rejected->loss != chosen.loss || rejected->slot != chosen.slot ||
        rejected->gradients != chosen.gradients) {
      fail(
          fmt::format("sequences[{}].loss: {} is of pairs, and the sequence behind it is not the "
                      "rejected answer, with the same loss, slot and gradients",
                      s, loss.name));
    }
    for (const api::Sequence* side : {&chosen, rejected}) {
      const std::vector<float>& weights = side->datum->inputs[api::LossInput::kWeights];
      if (weights.empty() || std::ranges::any_of(weights, [](float w) { return w != 0.0f; }))
        continue;
      fail(fmt::format("sequences[{}].weights: all are 0, and {} sums over the others", s,
                       loss.name));
    }
    ++s;
  }
}

// From the checkpoint in full precision; where there is none, what is in memory.
void read_initial_masters(Backend& backend, const model::LoadedModel& model, size_t index,
                          int64_t first_row, TensorView out) {
  if (model.checkpoint == nullptr) {
    model.weights->read_rows(backend, index, first_row, out);
  } else if (model.weights->table()[index].is_matrix()) {
    model::read_stored_rows(backend, model, index, first_row, out);
  } else {
    model::read_stored_parameter(backend, model, index, out);
  }
}

}  // namespace

Engine::Engine(std::unique_ptr<Backend> backend, model::LoadedModel model,
               const EngineOptions& options)
    : options_(checked(options)),
      model_(std::move(model)),
      workspace_(std::move(backend), model_.config),
      cache_layout_(model_.weights->own_config(), model_.weights->compute_dtype(),
                    options_.page_size, options_.draft_tokens),
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

api::AdapterSlot Engine::add_adapter(std::unique_ptr<model::LoraAdapter> adapter) {
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
  return add_adapter(std::move(adapter));
}

api::AdapterSlot Engine::plan_adapter(const std::vector<model::LoraModuleSpec>& specs) {
  return add_adapter(std::make_unique<model::LoraAdapter>(backend(), *model_.weights, specs));
}

api::AdapterSlot Engine::load_adapter(const std::string& dir) {
  return add_adapter(model::load_adapter(backend(), model_, dir));
}

void Engine::save_adapter(api::AdapterSlot slot, const std::string& dir) const {
  model::save_adapter(adapter(slot), dir, model_.dir, model::base_fingerprint_metadata(model_));
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

model::LoraAdapter* Engine::slot_adapter(api::AdapterSlot slot) const {
  return slot == api::AdapterSlot::kBase ? nullptr : &adapter(slot);
}

void Engine::ensure_base_trainer() {
  if (!base_trainer_)
    base_trainer_ = std::make_unique<train::BaseTrainer>(backend(), *model_.weights, share_);
}

train::BaseTrainer& Engine::base_trainer() {
  ensure_base_trainer();
  return *base_trainer_;
}

void Engine::enable_base_steps(const train::BaseStep& how) {
  const auto read = [this](size_t index, int64_t first_row, TensorView out) {
    read_initial_masters(backend(), model_, index, first_row, out);
  };
  base_trainer().enable_steps(read, how);
}

void Engine::prepare_batch(const api::Batch& batch, api::TensorSink* sink) {
  if (!batch.checked) check(batch);
  const bool has_large_results = batch.want_hidden_states || batch.want_logits;
  CHECK(sink != nullptr || !has_large_results);
  if (has_large_results) add_large_tensors(batch, *sink);
  if (batch.gradients == api::Gradients::kAdapters) enable_adapter_training(batch);
  if (batch.gradients == api::Gradients::kParameters) ensure_base_trainer();
}

void Engine::add_large_tensors(const api::Batch& batch, api::TensorSink& sink) const {
  int64_t total = 0;
  for (const api::Sequence& sequence : batch.sequences) total += std::ssize(sequence.datum->tokens);
  const model::ModelConfig& c = model_.config;
  const model::ModelWeights& weights = *model_.weights;
  if (batch.want_hidden_states) {
    const int64_t entries = weights.part().size() + (weights.ends() ? 1 : 0);
    sink.add("hidden_states", {entries, total, c.state_width()});
    if (c.streams && weights.ends()) sink.add("final_hidden", {total, c.hidden_size});
  }
  if (batch.want_logits && weights.ends()) sink.add("logits", {total, c.vocab_size});
  if (batch.want_logits && batch.mtp_weight > 0.0f && weights.ends())
    sink.add("mtp_logits", {total, c.vocab_size});
}

void Engine::enable_adapter_training(const api::Batch& batch) const {
  for (const api::Sequence& sequence : batch.sequences) {
    if (!sequence.gradients) continue;
    if (model::LoraAdapter* used = slot_adapter(sequence.slot)) used->enable_training();
  }
}

// What a caller asks is looked at as a whole before anything runs.
void Engine::check(const api::Batch& batch) const {
  if (batch.sequences.empty()) fail("sequences: got none, want at least one");
  if (batch.gradients != api::Gradients::kNone && !batch.want_loss)
    fail("gradients need want_loss");
  check_loss_weight(batch.mtp_weight, "mtp_weight");
  if (batch.mtp_weight > 0.0f && !model_.config.use_mtp)
    fail("mtp_weight: the model has no layer of multi-token prediction");
  check_loss_weight(batch.indexer_weight, "indexer_weight");
  if (batch.indexer_weight > 0.0f && model_.weights->layers().num_indexers() == 0)
    fail("indexer_weight: no layer of the model has an indexer");
  for (size_t s = 0; s < batch.sequences.size(); ++s)
    check(batch.sequences[s], fmt::format("sequences[{}]", s), batch.want_loss);
  if (batch.want_loss) check_pairs(batch);
}

void Engine::check(const api::Sequence& sequence, const std::string& where, bool want_loss) const {
  const api::Datum& datum = *sequence.datum;
  const api::LossRow& loss = api::row_of(sequence.loss.name);
  const size_t tokens = datum.tokens.size();
  if (tokens == 0) fail(where + ".tokens: got none, want at least one");
  check_positions(std::ssize(datum.tokens), model_.config, where);
  check_ids(datum.tokens, model_.config.vocab_size, where, "tokens");
  static_cast<void>(slot_adapter(sequence.slot));  // an Error when the slot is free
  check_num_targets(datum, loss, where);
  const size_t targets = tokens * static_cast<size_t>(datum.targets_per_token());
  check_length(datum.targets.size(), targets, where, "targets", !want_loss);
  check_ids(datum.targets, model_.config.vocab_size, where, "targets");
  check_loss_input_lengths(datum, loss, where, want_loss);
  if (want_loss) check_mask_has_tokens(datum, loss, where);
  check_options_ascend(sequence.loss, loss, where);
}

void Engine::check(const api::SampleRequest& request, size_t index) const {
  const std::string where = fmt::format("sample[{}]", index);
  const int64_t vocab = model_.config.vocab_size;
  if (request.prompt.empty()) fail(where + ".tokens: got none, want at least one");
  check_ids(request.prompt, vocab, where, "tokens");
  static_cast<void>(slot_adapter(request.slot));  // an Error when the slot is free
  check_at_least(request.max_tokens, 1, where, "max_tokens", "at least 1");
  const auto prompt = std::ssize(request.prompt);
  check_positions(prompt + std::min(request.max_tokens, INT64_MAX - prompt), model_.config, where);
  check_sampling_options(request, where);
  check_logit_bias(request.logit_bias, vocab, where);
  check_at_least(request.top_k, 0, where, "top_k", "0 (off) or more");
  check_topk(request.topk_prompt_logprobs, vocab, where, "topk_prompt_logprobs");
  check_ids(request.stop, vocab, where, "stop");
  check_topk(request.topk_sample_logprobs, vocab, where, "topk_sample_logprobs");
  check_at_least(request.prompt_draws, 0, where, "prompt_draws", "0 or more");
  check_prompt_targets(request, vocab, where);
}

}  // namespace strata::engine
