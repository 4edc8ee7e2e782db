// SPDX-License-Identifier: Apache-2.0
// EngineOptions: how an engine divides its work. Nothing here changes a bit of a result.
#pragma once
#include <cstdint>
#include <string>

#include "model/pass/recompute.h"

namespace strata::engine {

struct EngineOptions {
  int threads = 0;                // 0: all cores
  int64_t pass_tokens = 2048;     // a pass holds at most this many tokens, or one longer sequence
  int64_t prefill_tokens = 2048;  // a prompt is read in chunks of at most this many
  int64_t page_size = 64;         // positions in a KV page
  int64_t max_pages = 0;          // of the KV pool; 0: as many as memory holds
  int64_t max_states = 0;         // of sequences, likewise
  model::Recompute recompute = model::Recompute::kNone;
  model::RecomputeRegions regions = {};  // of a stage whose passes a Runner runs in flight
  // Rows that decode read, behind their last token, so many that multi-token prediction takes for
  // the next ones: where these are what is sampled, a step gives more than one token. Not 0: the
  // model has its layer.
  int64_t draft_tokens = 0;
  // Scratch that a pass may take. A sequence that needs more is run with full recompute, to the
  // same bits, then with its layers' inputs offloaded where `offload` says so, and refused when
  // that is still too much. 0: whatever it needs.
  int64_t pass_bytes = 0;
  // Folder on a disk for activations that a pass offloads; empty: that of temporary files, and no
  // pass offloads unless `recompute` says so.
  std::string offload = {};
};

// The same, or a CHECK: what an Engine is made with. A file of its own, so that tests can put
// hostile settings in the place of those that nobody chose (tests/hostile).
EngineOptions checked(const EngineOptions& options);

}  // namespace strata::engine
