// SPDX-License-Identifier: Apache-2.0
// Weights that lie in a file change no bit of training, scoring or sampling, also where the system
// has thrown out what it kept of them; and activations that do are no memory of the process's own.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <optional>

#include "base/threads.h"
#include "engine/plan/memory_plan.h"
#include "engine/sampling/sampling_loop.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

std::unique_ptr<Engine> engine_of(const std::string& name, const std::string& offload) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
  auto model = model::load_model(
      *backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model",
      {.compute_dtype = DType::kBF16, .offload = offload});
  return std::make_unique<Engine>(std::move(backend), std::move(model),
                                  EngineOptions{.pass_tokens = 60});
}

// Out of the process and out of the system's cache.
void throw_out(Engine& engine) {
  for (const model::Parameter& parameter : engine.model().weights->table()) {
    const bool is_matrix = parameter.is_matrix();
    const auto begin =
        reinterpret_cast<uintptr_t>(is_matrix ? parameter.panel.data : parameter.values.data);
    const int64_t bytes = is_matrix ? parameter.panel.num_bytes() : parameter.values.num_bytes();
    const uintptr_t first = begin / 4096 * 4096;
    const auto size = static_cast<size_t>(begin - first) + static_cast<size_t>(bytes);
    ASSERT_EQ(::msync(reinterpret_cast<void*>(first), size, MS_SYNC), 0);
    ::madvise(reinterpret_cast<void*>(first), size, MADV_PAGEOUT);
  }
}

std::vector<std::vector<float>> results(Engine& engine, bool evicts) {
  const api::AdapterSlot slot = engine.create_adapter(tiny_specs(engine, 4), 3);
  stir(engine, slot);
  api::Batch batch = {.gradients = api::Gradients::kAdapters};
  batch.sequences = {tiny_sequence(engine, 50, 1, slot),
                     tiny_sequence(engine, 30, 2, api::AdapterSlot::kBase)};
  std::vector<std::vector<float>> out;
  for (const auto& recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    if (evicts) throw_out(engine);
    engine.set_pass_options(60, recompute);
    for (const auto& sequence : run_batch(engine, batch).sequences)
      out.push_back(sequence.logprobs);
    out.push_back(copy_of(engine.adapter(slot).gradients()));
    take_step(engine, slot, {.lr = 1e-2});
    out.push_back(copy_of(engine.adapter(slot).parameters()));
  }
  api::SampleRequest request;
  request.prompt = tiny_tokens(20, engine.config().vocab_size, 5);
  request.max_tokens = 8;
  request.slot = slot;
  for (const api::SampleResult& sample : engine::sample(engine, {request}))
    out.push_back(sample.logprobs);
  return out;
}

class EngineOffload : public testing::TestWithParam<std::string> {};

TEST_P(EngineOffload, ChangesNoBit) {
  auto kept = engine_of(GetParam(), "");
  auto offloaded = engine_of(GetParam(), testing::TempDir());
  auto evicted = engine_of(GetParam(), testing::TempDir());
  const auto wanted = results(*kept, false);
  EXPECT_EQ(results(*offloaded, false), wanted);
  EXPECT_EQ(results(*evicted, true), wanted);
}

// Sampling that breaks in on a pass walks all layers; those that the pass is at are still there
// when it goes on (tests/deferred: nothing else is).
TEST_P(EngineOffload, SamplingInsideAPassLeavesThePassItsLayers) {
  std::vector<std::vector<float>> gradients;
  for (const bool is_broken : {false, true}) {
    auto engine = engine_of(GetParam(), testing::TempDir());
    const api::AdapterSlot slot = engine->create_adapter(tiny_specs(*engine, 4), 3);
    stir(*engine, slot);
    api::Batch batch = {.gradients = api::Gradients::kAdapters};
    batch.sequences = {tiny_sequence(*engine, 50, 1, slot)};
    api::SampleRequest asked;
    asked.prompt = tiny_tokens(20, engine->config().vocab_size, 5);
    asked.max_tokens = 8;
    PassWorkspace room(engine->workspace(), engine->config());
    Runner runner(*engine);
    SamplingLoop loop(runner, room);
    const size_t row = loop.add(asked);
    int64_t num_asked = 0, num_steps = 0;
    const auto is_due = [&] { return !loop.done() && ++num_asked % 5 == 0; };
    const auto run = [&] {
      loop.step();
      ++num_steps;
    };
    const Interruption breaks{.is_due = is_due, .run = run};
    std::optional<Backend::Breaks> guard;
    if (is_broken) guard.emplace(engine->backend(), breaks);
    run_batch(*engine, batch);
    guard.reset();
    EXPECT_EQ(num_steps > 0, is_broken);
    while (!loop.done()) loop.step();
    gradients.push_back(copy_of(engine->adapter(slot).gradients()));
    gradients.push_back(loop.take_result(row).logprobs);
  }
  EXPECT_EQ(gradients[2], gradients[0]);
  EXPECT_EQ(gradients[3], gradients[1]);
}

TEST_P(EngineOffload, IsNoMemoryOfThePlan) {
  auto kept = engine_of(GetParam(), "");
  auto offloaded = engine_of(GetParam(), testing::TempDir());
  const PlanShape shape = {.pass_tokens = 60, .backward = true};
  const MemoryPlan in_memory = plan_memory(*kept, shape), in_file = plan_memory(*offloaded, shape);
  EXPECT_EQ(in_memory.file_bytes, 0);
  EXPECT_EQ(in_file.file_bytes, offloaded->model().weights->num_bytes());
  EXPECT_EQ(in_file.total() + in_file.file_bytes, in_memory.total());
}

// Of this process and of no file.
int64_t anonymous_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return -1;
}

struct Taken {
  int64_t anonymous = 0;
  PassPlan plan;
  std::vector<std::vector<float>> results;
};

// A pass of 40 long sequences, whose activations are most of what the engine takes.
Taken take_pass(const model::Recompute& recompute) {
  const int64_t before = anonymous_bytes();
  auto engine = tiny_engine({.options = {.pass_tokens = 10000, .recompute = recompute}});
  const api::AdapterSlot slot = engine->create_adapter(tiny_specs(*engine, 4), 3);
  stir(*engine, slot);
  api::Batch batch = {.gradients = api::Gradients::kAdapters};
  for (uint32_t i = 0; i < 40; ++i) batch.sequences.push_back(tiny_sequence(*engine, 250, i, slot));
  Taken taken;
  for (int twice = 0; twice < 2; ++twice) {
    for (const auto& sequence : run_batch(*engine, batch).sequences)
      taken.results.push_back(sequence.logprobs);
  }
  taken.results.push_back(copy_of(engine->adapter(slot).gradients()));
  taken.anonymous = anonymous_bytes() - before;
  taken.plan = engine->last_plan();
  return taken;
}

TEST(EngineOffloadedActivations, LeaveTheMemory) {
  std::vector<std::string> tags = {std::string(model::kLayerInputTag), "context"};
  for (const model::RecomputePreset& preset : model::recompute_presets()) {
    if (preset.name == "minimal") tags.insert(tags.end(), preset.tags.begin(), preset.tags.end());
  }
  const Taken kept = take_pass(model::Recompute::keeping(tags));
  const Taken gone = take_pass(model::Recompute::with_offload({}, tags));
  EXPECT_EQ(gone.results, kept.results);
  EXPECT_EQ(kept.plan.file_bytes, 0);
  ASSERT_GT(gone.plan.file_bytes, 16 << 20);
  EXPECT_EQ(gone.plan.total() + gone.plan.file_bytes, kept.plan.total());
  EXPECT_LT(gone.anonymous, kept.anonymous - gone.plan.file_bytes * 8 / 10);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineOffload,
                         testing::Values("qwen3", "gemma3", "deepseek_moe", "qwen3_moe",
                                         "qwen3_5_moe", "deepseek_v4", "gpt_oss", "gemma2", "lfm2",
                                         "gemma4", "gemma4_shared", "llama4", "zero_layers_tied"));

}  // namespace
}  // namespace strata::engine
