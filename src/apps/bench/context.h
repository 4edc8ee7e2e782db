// SPDX-License-Identifier: Apache-2.0
// A sequence that nobody read: pages and state of so many positions hold noise, and rows are
// decoded behind them. For times alone: what they cost does not depend on what they hold.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/pass_workspace.h"
#include "model/decoder.h"

namespace strata::apps {

class NoisyContext {
 public:
  // Borrows the engine, whose pools it takes from. Decodes up to `most_tokens` behind the context.
  NoisyContext(engine::Engine& engine, int64_t positions, int64_t most_tokens);
  ~NoisyContext();
  NoisyContext(const NoisyContext&) = delete;
  NoisyContext& operator=(const NoisyContext&) = delete;

  // Seconds of so many passes of one token each, logits included, from the context's end on.
  double time_decoding(int64_t tokens);

 private:
  void fill_with_noise(void* memory, int64_t bytes);
  void run_pass(Backend& backend);
  void book_pass();

  engine::Engine& engine_;
  int64_t positions_;
  int64_t most_tokens_;
  std::vector<void*> pages_;
  void* state_ = nullptr;
  engine::PassBuilder builder_;
  model::Tape tape_;
};

}  // namespace strata::apps
