// SPDX-License-Identifier: Apache-2.0
// Engines on the tiny models of tests/golden, and sequences, adapters and noise for them.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/runner.h"
#include "engine/sampling/sampling_loop.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::engine {

// Reruns of these tests ask for other numbers of threads (tests/hostile).
inline int test_threads(int usual) {
  const char* other = std::getenv("STRATA_TEST_THREADS");
  return other == nullptr ? usual : std::atoi(other);
}

struct TinyEngine {
  std::string model = "qwen3";
  DType dtype = DType::kBF16;
  int threads = 1;
  EngineOptions options = {};
  model::UseMtp mtp = model::UseMtp::kNever;
};

inline std::unique_ptr<Engine> tiny_engine(const TinyEngine& setup) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), test_threads(setup.threads));
  auto model = model::load_model(
      *backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + setup.model + "/model",
      {.compute_dtype = setup.dtype, .mtp = setup.mtp});
  return std::make_unique<Engine>(std::move(backend), std::move(model), setup.options);
}

inline api::BatchResult run_batch(Engine& whole, const api::Batch& batch,
                                  api::TensorSink* sink = nullptr) {
  return Runner(whole).run(batch, sink);
}
inline api::StepResult take_step(Engine& whole, api::AdapterSlot slot, const api::AdamW& adamw) {
  return Runner(whole).step(slot, adamw);
}

inline std::vector<api::SampleResult> sample(Engine& whole,
                                             const std::vector<api::SampleRequest>& requests) {
  Runner runner(whole);
  return sample(runner, requests);
}

inline std::vector<int32_t> tiny_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(vocab)));
  }
  return out;
}

// Sequences borrow their data: tests keep each until they end.
inline api::Datum& keep(api::Datum datum) {
  static std::deque<api::Datum> kept;
  return kept.emplace_back(std::move(datum));
}
// A copy of the sequence's datum, which it has from now on, to be changed.
inline api::Datum& edit(api::Sequence& sequence) {
  api::Datum& copy = keep(*sequence.datum);
  sequence.datum = &copy;
  return copy;
}
inline std::vector<float>& weights_of(api::Datum& datum) {
  return datum.inputs[api::LossInput::kWeights];
}

// Every fifth weight is zero.
inline api::Datum tiny_datum(const Engine& engine, int64_t count, uint32_t seed) {
  api::Datum out;
  out.tokens = tiny_tokens(count, engine.config().vocab_size, seed);
  out.targets = tiny_tokens(count, engine.config().vocab_size, seed + 1);
  for (int64_t i = 0; i < count; ++i)
    weights_of(out).push_back(i % 5 == 2 ? 0.0f : 1.0f - 0.125f * static_cast<float>(i % 3));
  return out;
}
inline api::Sequence tiny_sequence(const Engine& engine, int64_t count, uint32_t seed,
                                   api::AdapterSlot slot) {
  return {.datum = &keep(tiny_datum(engine, count, seed)), .slot = slot};
}

inline std::vector<model::LoraModuleSpec> tiny_specs(const Engine& engine, int64_t rank) {
  return model::make_adapter_specs(engine.config(), {"all-linear", "embed_tokens", "lm_head"}, rank,
                                   16.0);
}

// B starts at zero, so that nothing flows into A: gives both something.
inline void stir(Engine& engine, model::LoraAdapter& adapter) {
  const HostAccess access(engine.backend().allocator());
  float* values = adapter.parameters().f32();
  for (int64_t i = 0; i < adapter.num_parameters(); ++i)
    values[i] += 0.03f * static_cast<float>((i * 2654435761u >> 7) % 17) - 0.24f;
  adapter.refresh(engine.backend());
}
inline void stir(Engine& engine, api::AdapterSlot slot) { stir(engine, engine.adapter(slot)); }

inline std::vector<float> copy_of(TensorView view) {
  const HostAccess access(cpu_allocator());
  return {view.f32(), view.f32() + view.shape.num_elements()};
}

// Gradients of base parameters by name, which are zeroes afterwards.
inline std::map<std::string, std::vector<float>> take_base_gradients(Engine& engine) {
  train::BaseTrainer& trainer = engine.base_trainer();
  trainer.finish_gradients(engine.backend());
  std::map<std::string, std::vector<float>> out;
  const auto& table = engine.model().weights->table();
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].buffer) out[std::string(table[i].name)] = copy_of(trainer.gradient(i));
  }
  trainer.zero_gradients(engine.backend());
  return out;
}

inline void expect_same(const api::SampleResult& got, const api::SampleResult& want,
                        bool with_prompt = true) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logprobs, want.logprobs);
  EXPECT_EQ(got.sample_topk_ids, want.sample_topk_ids);
  EXPECT_EQ(got.sample_topk_logprobs, want.sample_topk_logprobs);
  EXPECT_EQ(got.stopped, want.stopped);
  if (!with_prompt) return;
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs);
  EXPECT_EQ(got.topk_ids, want.topk_ids);
  EXPECT_EQ(got.topk_logprobs, want.topk_logprobs);
}

}  // namespace strata::engine
