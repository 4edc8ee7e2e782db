// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/context.h"

#include <algorithm>

#include "base/clock.h"
#include "model/decoder.h"
#include "model/head.h"
#include "ops/elementwise.h"

namespace strata::apps {
namespace {

constexpr int64_t kNoise = 1 << 18;  // values that are drawn once

// Uniform in [-1, 1), by a linear congruential generator.
std::vector<float> noise_values() {
  std::vector<float> values(static_cast<size_t>(kNoise));
  uint64_t x = 1;
  for (float& value : values) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1.0p-31f;
  }
  return values;
}

}  // namespace

NoisyContext::NoisyContext(engine::Engine& engine, int64_t positions, int64_t most_tokens)
    : engine_(engine), positions_(positions), most_tokens_(most_tokens) {
  engine::KvPool& pool = engine.kv_pool();
  while (std::ssize(pages_) < pool.pages_for(positions + most_tokens)) {
    pages_.push_back(pool.take());
    fill_with_noise(pages_.back(), pool.page_bytes());
  }
  const int64_t state_bytes = engine.cache_layout().state_bytes();
  if (state_bytes == 0) return;
  state_ = engine.state_pool().take();
  fill_with_noise(state_, state_bytes);
}

NoisyContext::~NoisyContext() {
  for (void* page : pages_) engine_.kv_pool().give_back(page);
  if (state_ != nullptr) engine_.state_pool().give_back(state_);
}

// Numbers of bf16, of which two are a number of f32 too.
void NoisyContext::fill_with_noise(void* memory, int64_t bytes) {
  Backend& backend = engine_.backend();
  const Scratch::Mark mark(backend.scratch());
  const TensorView noise = backend.scratch().take(DType::kBF16, {kNoise});
  ops::from_host(backend, noise_values(), noise);
  const int64_t step = kNoise * dtype_bytes(DType::kBF16);
  for (int64_t begin = 0; begin < bytes; begin += step) {
    ops::copy_bytes(backend, noise.data, static_cast<char*>(memory) + begin,
                    std::min(step, bytes - begin));
  }
}

void NoisyContext::run_pass(Backend& backend) {
  const Scratch::Mark mark(backend.scratch());
  const model::ModelConfig& config = engine_.config();
  model::Pass pass = builder_.build(backend, *engine_.model().weights, engine_.workspace().ropes(),
                                    engine_.cache_layout());
  const TensorView hidden = pass.take(pass.dtype(), {pass.num_tokens(), config.hidden_size});
  model::decoder_forward(pass, tape_, /*wants_backward=*/false, {}, hidden);
  const TensorView logits = pass.take(DType::kF32, {pass.num_tokens(), config.vocab_size});
  model::head_forward(pass, pass.rows, hidden, {}, logits);
}

void NoisyContext::book_pass() {
  engine_.workspace().book(
      engine_.workspace().measure([this](Backend& counter) { run_pass(counter); }));
}

double NoisyContext::time_decoding(int64_t tokens) {
  CHECK(tokens <= most_tokens_, tokens, most_tokens_);
  const int32_t token = 1;
  double seconds = 0.0;
  for (int64_t i = 0; i < tokens; ++i) {
    builder_.clear();
    builder_.append({&token, 1}, positions_ + i, nullptr, {.pages = pages_, .state = state_});
    const double start = now_seconds();
    if (i == 0) book_pass();
    run_pass(engine_.backend());
    seconds += now_seconds() - start;
  }
  return seconds;
}

}  // namespace strata::apps
