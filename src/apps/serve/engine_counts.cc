// SPDX-License-Identifier: Apache-2.0
// EngineHost::counts(): what the engines have done and hold.
#include "apps/serve/engine_host.h"
#include "base/clock.h"

namespace strata::apps {
namespace {

// The tokens of its forward and backward passes.
int64_t num_data_tokens(const api::Work& work) {
  int64_t tokens = 0;
  for (const api::DataRange& rows : work.rows) {
    const auto& data = std::get<api::ForwardBackward>(rows.command->op).data;
    for (size_t i = rows.first; i < rows.last; ++i)
      tokens += scheduler::Scheduler::datum_tokens(data[i]);
  }
  return tokens;
}

}  // namespace

void EngineHost::update_counts(const api::Work& work) {
  update_runner_counts();
  if (!work.control.empty()) update_adapter_counts();
  if (work.decode || !work.cancel.empty() || !work.release.empty()) update_cache_counts();
  update_training_counts(work);
}

void EngineHost::update_runner_counts() {
  Counts sum;
  for (const Base& base : engines_) {
    sum.trained_tokens += base.runner->trained_tokens();
    sum.sampled_tokens += base.runner->sampled_tokens();
    sum.drafts_read += base.runner->drafts().read;
    sum.drafts_accepted += base.runner->drafts().accepted;
    sum.running_samples += base.runner->capacity().running_samples;
    sum.snapshot_bytes += base.runner->snapshots().num_bytes();
    sum.prompt_tokens += base.runner->prefix_counts().prompt_tokens;
    sum.cached_tokens += base.runner->prefix_counts().found_tokens;
  }
  trained_tokens_ = sum.trained_tokens;
  sampled_tokens_ = sum.sampled_tokens;
  drafts_read_ = sum.drafts_read;
  drafts_accepted_ = sum.drafts_accepted;
  running_samples_ = sum.running_samples;
  snapshot_bytes_ = sum.snapshot_bytes;
  prompt_tokens_ = sum.prompt_tokens;
  cached_tokens_ = sum.cached_tokens;
}

void EngineHost::update_training_counts(const api::Work& work) {
  const int64_t batch = num_data_tokens(work);
  if (batch == 0) return;
  batch_tokens_ = batch;
  ++train_passes_;
}

void EngineHost::update_adapter_counts() {
  adapters_ = book_->num_models();
  adapter_bytes_ = book_->num_bytes();
}

void EngineHost::update_cache_counts() {
  int64_t kv_bytes = 0, state_bytes = 0, prefix_bytes = 0;
  for (const Base& base : engines_) {
    const engine::Stages& stages = *base.stages;
    for (size_t i = 0; i < stages.size(); ++i) {
      kv_bytes += stages.engine(i).kv_pool().num_bytes();
      state_bytes += stages.engine(i).state_pool().num_bytes();
    }
    const engine::PrefixCache* prefixes = base.runner->prefixes();
    if (prefixes == nullptr) continue;
    prefix_bytes += prefixes->num_pages() * stages.engine().kv_pool().page_bytes() *
                    static_cast<int64_t>(stages.size());
  }
  kv_bytes_ = kv_bytes;
  state_bytes_ = state_bytes;
  prefix_bytes_ = prefix_bytes;
}

EngineHost::Counts EngineHost::counts() const {
  const double began = turn_began_;
  return {.trained_tokens = trained_tokens_,
          .sampled_tokens = sampled_tokens_,
          .drafts_read = drafts_read_,
          .drafts_accepted = drafts_accepted_,
          .prompt_tokens = prompt_tokens_,
          .cached_tokens = cached_tokens_,
          .train_passes = train_passes_,
          .batch_tokens = batch_tokens_,
          .running_samples = running_samples_,
          .adapters = adapters_,
          .adapter_bytes = adapter_bytes_,
          .snapshot_bytes = snapshot_bytes_,
          .kv_bytes = kv_bytes_,
          .state_bytes = state_bytes_,
          .prefix_bytes = prefix_bytes_,
          .turn_seconds = began > 0 ? now_seconds() - began : 0.0};
}

}  // namespace strata::apps
