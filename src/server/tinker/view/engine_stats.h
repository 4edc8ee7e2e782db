// SPDX-License-Identifier: Apache-2.0
// What the engines and the scheduler say about themselves, as plain values: the owner of the server
// fills it (any thread), the metrics and the page show it.
#pragma once
#include <cstdint>

namespace strata::server {

struct EngineStats {
  // Counters since the start.
  int64_t trained_tokens = 0;
  int64_t sampled_tokens = 0;
  int64_t drafts_read = 0;      // tokens that were guessed and read with those that were known
  int64_t drafts_accepted = 0;  // of these, what was sampled
  int64_t prompt_tokens = 0;    // of samples that looked for a known prefix
  int64_t cached_tokens = 0;    // of these, what was known
  int64_t train_passes = 0;
  // Gauges.
  int64_t batch_tokens = 0;     // of the last pass with training rows
  int64_t running_samples = 0;  // rows in the batch
  int64_t queued_training = 0;  // operations not started
  int64_t held_training = 0;    // of these, behind a missing number
  int64_t queued_samples = 0;   // requests
  int64_t queued_bytes = 0;
  int64_t adapters = 0;
  double turn_seconds = 0.0;  // of the turn that is running; 0: none is
  // Memory in bytes, by use: what is taken, and what the plan allows.
  int64_t weights = 0;
  int64_t passes = 0;
  int64_t adapter_bytes = 0, adapter_limit = 0;
  int64_t snapshot_bytes = 0, snapshot_limit = 0;
  int64_t kv_bytes = 0, kv_limit = 0;
  int64_t state_bytes = 0, state_limit = 0;  // recurrent states of sequences
  int64_t prefix_bytes = 0;  // of the pages, those that samples which ended have left
  int64_t budget = 0;
};

}  // namespace strata::server
