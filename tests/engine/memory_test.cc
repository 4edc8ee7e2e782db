// SPDX-License-Identifier: Apache-2.0
// What a run takes: a warm step allocates nothing but its result, training takes no KV cache,
// recompute makes a pass smaller, and the plan of a pass covers what the pass took.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>
#include <set>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/plan/memory_plan.h"
#include "engine/sampling/sampling_loop.h"
#include "model/blocks/gqa.h"
#include "model/blocks/mla.h"
#include "tests/engine/tiny_engine.h"

namespace {
std::atomic<int64_t> num_news{0};
std::atomic<int64_t> num_maps{0};
}  // namespace

// Clang builds the sanitizers here, and they keep these names for themselves.
#if !defined(__clang__)
constexpr bool kCounts = true;
[[gnu::noinline]] void* operator new(size_t bytes) {
  num_news.fetch_add(1, std::memory_order_relaxed);
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept { std::free(data); }

extern "C" void* mmap(void* address, size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  num_maps.fetch_add(1, std::memory_order_relaxed);
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
#else
constexpr bool kCounts = false;
#endif

namespace strata::engine {
namespace {

using api::AdapterSlot;

std::unique_ptr<Engine> make(const EngineOptions& options, const std::string& name = "qwen3") {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), test_threads(2));
  auto model = model::load_model(
      *backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model",
      {.compute_dtype = DType::kBF16});
  return std::make_unique<Engine>(std::move(backend), std::move(model), options);
}

// Two adapters and the base, uneven lengths, more than one pass.
api::Batch batch_of(Engine& engine, api::Gradients gradients) {
  const auto specs =
      model::make_adapter_specs(engine.config(), {"all-linear", "embed_tokens", "lm_head"}, 4, 8.0);
  const AdapterSlot slots[] = {AdapterSlot::kBase, engine.create_adapter(specs, 1),
                               engine.create_adapter(specs, 2)};
  api::Batch batch;
  batch.gradients = gradients;
  for (const int length : {90, 7, 33, 64}) {
    api::Datum datum;
    for (int t = 0; t < length; ++t) {
      datum.tokens.push_back((7 * t + length) % static_cast<int>(engine.config().vocab_size));
      datum.targets.push_back((5 * t + 1) % static_cast<int>(engine.config().vocab_size));
    }
    batch.sequences.push_back({.datum = &keep(std::move(datum)),
                               .slot = gradients == api::Gradients::kParameters
                                           ? AdapterSlot::kBase
                                           : slots[batch.sequences.size() % 3]});
  }
  return batch;
}

class WarmStep
    : public testing::TestWithParam<std::tuple<api::Gradients, model::Recompute, std::string>> {};

TEST_P(WarmStep, AllocatesItsResultAlone) {
  if (!kCounts) GTEST_SKIP() << "this build cannot count allocations";
  const auto [gradients, recompute, name] = GetParam();
  auto engine = make({.pass_tokens = 100, .recompute = recompute}, name);
  const api::Batch batch = batch_of(*engine, gradients);
  Runner runner(*engine);
  const auto step = [&, gradients = gradients] {
    const api::BatchResult result = runner.run(batch);
    if (gradients == api::Gradients::kParameters) {
      runner.step(AdapterSlot::kBase, {.grad_clip_norm = 1.0});
    } else {
      runner.step(AdapterSlot{1}, {.grad_clip_norm = 1.0});
      runner.step(AdapterSlot{2}, {});
    }
    return result.num_passes;
  };
  EXPECT_GE(step(), 2);
  // Whichever worker got something to do: theirs are booked by passes, and steps take nothing
  // there.
  for (int i = 0; i < engine->backend().num_workers(); ++i) {
    EXPECT_EQ(as_cpu(engine->backend()).worker(i).scratch().grown(), 0) << i;
  }
  step();
  const int64_t news = num_news.load(), maps = num_maps.load();
  step();
  // The list of results, and two lists of numbers for each sequence.
  EXPECT_EQ(num_news.load() - news, 1 + 2 * static_cast<int64_t>(batch.sequences.size()));
  EXPECT_EQ(num_maps.load(), maps);
}

INSTANTIATE_TEST_SUITE_P(
    All, WarmStep,
    testing::Combine(testing::Values(api::Gradients::kAdapters, api::Gradients::kParameters),
                     testing::Values(model::Recompute::kNone, model::Recompute::kFull,
                                     model::Recompute::with_offload({"context"},
                                                                    {"decoder_layer_input",
                                                                     "out_proj", "mlpwi_0"})),
                     testing::Values("qwen3", "deepseek_mla", "qwen3_moe", "deepseek_moe",
                                     "qwen3_5", "qwen3_5_moe", "deepseek_v4", "gpt_oss", "gemma2",
                                     "lfm2", "gemma4_shared", "llama4")));

TEST(EngineMemory, LoadingKeepsNoScratch) {
  auto engine = make({});
  EXPECT_EQ(engine->backend().scratch().booked(), 0);
}

TEST(EngineMemory, TrainingTakesNoCache) {
  auto engine = make({});
  run_batch(*engine, batch_of(*engine, api::Gradients::kAdapters));
  EXPECT_EQ(engine->kv_pool().num_bytes(), 0);
}

// One row of latent and rotated key a token and layer, whatever the number of heads.
TEST(EngineMemory, TheLatentCacheGrowsWithTheLatent) {
  auto engine = make({}, "deepseek_mla");
  api::SampleRequest request;
  request.prompt.assign(100, 3);
  request.max_tokens = 2;
  sample(*engine, {request});
  const KvPool& pool = engine->kv_pool();
  const model::ModelConfig& c = engine->config();
  const auto& mla = *c.find_block_config<model::MlaConfig>(0, model::kMla);
  EXPECT_EQ(pool.num_bytes(), pool.num_pages() * pool.page_size() * c.num_layers() * 2 *
                                  (mla.kv_lora_rank + mla.rope_dim));
}

std::map<std::string, int64_t> by_tag(std::span<const Scratch::Use> uses) {
  std::map<std::string, int64_t> bytes;
  for (const Scratch::Use& use : uses) {
    if (use.bytes > 0) bytes[std::string(use.tag)] += use.bytes;
  }
  return bytes;
}

// The plan of the pass that ran last against what it took, to the byte and by tag.
void expect_taken_as_planned(Engine& engine, const std::string& where) {
  Backend& backend = engine.backend();
  const PassPlan& plan = engine.last_plan();
  EXPECT_GT(plan.bytes, 0) << where;
  EXPECT_EQ(backend.scratch().high_water(), plan.bytes) << where;
  EXPECT_GE(backend.scratch().booked(), plan.bytes) << where;
  EXPECT_EQ(by_tag(backend.scratch().peak_uses()), by_tag(plan.uses)) << where;
  int64_t sum = 0;
  for (const auto& [tag, bytes] : by_tag(plan.uses)) sum += bytes;
  EXPECT_EQ(sum, plan.bytes) << where;
  for (int i = 0; i < backend.num_workers(); ++i) {
    EXPECT_LE(as_cpu(backend).worker(i).scratch().high_water(), plan.worker_bytes) << where;
    EXPECT_EQ(as_cpu(backend).worker(i).scratch().grown(), 0) << where;
  }
}

class PlannedPass : public testing::TestWithParam<std::string> {};

TEST_P(PlannedPass, TakesWhatIsPlanned) {
  for (const auto& recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    for (const auto gradients :
         {api::Gradients::kNone, api::Gradients::kAdapters, api::Gradients::kParameters}) {
      auto engine = make({.recompute = recompute}, GetParam());
      api::Batch batch = batch_of(*engine, gradients);
      api::TensorSink sink;
      batch.want_hidden_states = batch.want_logits = gradients == api::Gradients::kNone;
      const int64_t grown = engine->backend().scratch().grown();  // while the model was loaded
      run_batch(*engine, batch, &sink);
      EXPECT_EQ(engine->backend().scratch().grown(), grown);
      expect_taken_as_planned(
          *engine, GetParam() + " gradients " + std::to_string(static_cast<int>(gradients)));
    }
  }
}

// Prompts in chunks, rows of several adapters, scaled logprobs and prompt logprobs.
TEST_P(PlannedPass, OfSamplingTakesWhatIsPlanned) {
  auto engine = make({.prefill_tokens = 40}, GetParam());
  batch_of(*engine, api::Gradients::kAdapters);  // makes two adapters
  SamplingLoop loop(*engine);
  for (int i = 0; i < 5; ++i) {
    api::SampleRequest request;
    request.slot = api::AdapterSlot{i % 3};
    request.prompt.assign(static_cast<size_t>(7 + 23 * i), 3 + i);
    request.max_tokens = 4 + i;
    request.temperature = i % 2 == 0 ? 0.7f : 1.0f;
    request.scaled_logprobs = true;
    request.prompt_logprobs = i == 3;
    loop.add(request);
  }
  const int64_t grown = engine->backend().scratch().grown();
  while (!loop.done()) {
    loop.step();
    expect_taken_as_planned(*engine, GetParam());
  }
  EXPECT_EQ(engine->backend().scratch().grown(), grown);
}

INSTANTIATE_TEST_SUITE_P(All, PlannedPass,
                         testing::Values("qwen3", "llama2", "llama_tied_embed", "deepseek_mla",
                                         "deepseek_moe", "qwen3_moe", "qwen3_5", "qwen3_5_moe",
                                         "deepseek_v4", "gpt_oss", "gemma2", "lfm2",
                                         "gemma4_shared", "llama4", "zero_layers"));

// The plan of a shape covers a pass of one sequence, and comes close for any division: attention's
// workspace alone depends on how sequences fall to workers, by some rows of a worker.
TEST(EngineMemory, ThePlanOfAShapeCoversItsPasses) {
  for (const char* name : {"qwen3", "deepseek_moe", "qwen3_moe"}) {
    for (const bool backward : {false, true}) {
      auto engine = make({.pass_tokens = 4096}, name);
      api::Batch batch =
          batch_of(*engine, backward ? api::Gradients::kAdapters : api::Gradients::kNone);
      PlanShape shape = {.pass_tokens = 194, .backward = backward};
      for (const model::LoraModule& module : engine->adapter(AdapterSlot{1}).modules()) {
        shape.modules.push_back(module.spec);
      }
      const double planned = static_cast<double>(plan_pass(*engine, shape).total());
      run_batch(*engine, batch);
      const auto mixed = static_cast<double>(engine->last_plan().total());
      EXPECT_LE(mixed, 1.05 * planned) << name;
      EXPECT_GE(mixed, 0.5 * planned) << name;
      batch.sequences.resize(2);
      batch.sequences[0] = batch.sequences[1];  // of an adapter
      batch.sequences.resize(1);
      api::Datum& datum = edit(batch.sequences[0]);
      datum.tokens.resize(194, 1);
      datum.targets.resize(194, 2);
      run_batch(*engine, batch);
      EXPECT_LE(static_cast<double>(engine->last_plan().total()), planned) << name;
    }
  }
}

// Attention costs what it sees to make again, in a window and beyond it.
TEST(EngineMemory, ContextOfAWindowCostsWhatItSees) {
  auto engine = make({}, "gemma3");
  constexpr int64_t kTokens = 64;
  const PassPlan plan =
      plan_pass(*engine, {.pass_tokens = kTokens, .backward = true, .alone = true});
  std::set<int64_t> windows;
  for (const model::SavedCost& cost : plan.saved) {
    if (cost.tag != "context" || cost.flops == 0.0) continue;
    const auto& c = *engine->config().find_block_config<model::GqaConfig>(cost.layer, model::kGqa);
    windows.insert(c.window);
    const double pairs = c.window == 0 ? kTokens * kTokens / 2.0
                                       : c.window * (static_cast<double>(kTokens) - c.window / 2.0);
    EXPECT_EQ(cost.flops, 4.0 * static_cast<double>(c.q_width()) * pairs) << cost.layer;
  }
  EXPECT_EQ(windows.size(), 2u);
}

// What an activation costs to make again, against the formulas of its projection.
TEST(EngineMemory, SavedActivationsHaveTheirBytesAndCosts) {
  auto engine = make({}, "qwen3");
  const auto& attention = *engine->config().find_block_config<model::GqaConfig>(0, model::kGqa);
  const PassPlan plan = plan_pass(*engine, {.pass_tokens = 64, .backward = true});
  const auto find = [&](std::string_view tag) {
    model::SavedCost sum = {.tag = tag};
    for (const model::SavedCost& cost : plan.saved) {
      if (cost.tag != tag) continue;
      sum.bytes += cost.bytes;
      sum.flops += cost.flops;
    }
    return sum;
  };
  const auto layers = static_cast<double>(engine->config().num_layers());
  const model::SavedCost queries = find("query_proj");
  EXPECT_EQ(queries.bytes, engine->config().num_layers() * 64 * attention.q_width() * 2);
  EXPECT_EQ(queries.flops, layers * 2.0 * 64.0 * static_cast<double>(attention.q_width()) *
                               static_cast<double>(engine->config().hidden_size));
  for (const char* tag : {"key_proj", "value_proj", "context", "out_proj", "mlpwi_0", "mlpwi_1"}) {
    EXPECT_GT(find(tag).bytes, 0) << tag;
    EXPECT_GT(find(tag).flops, 0.0) << tag;
  }
}

// A sequence too long for the memory of a pass is recomputed, to the same bits, and then with its
// layers' inputs in a file where that is allowed; one that is longer still is refused by name
// before anything of its batch has run.
TEST(EngineMemory, ALongSequenceIsRecomputedOrRefused) {
  auto free_engine = make({.pass_tokens = 64});
  auto limited = make({.pass_tokens = 64});
  api::Batch batch = batch_of(*free_engine, api::Gradients::kAdapters);
  batch_of(*limited, api::Gradients::kAdapters);  // makes the same adapters
  for (api::Sequence& sequence : batch.sequences) {
    api::Datum& datum = edit(sequence);
    datum.tokens.resize(60, 3);
    datum.targets.resize(60, 4);
  }
  api::Sequence& last = batch.sequences.back();
  last.slot = AdapterSlot{1};
  edit(last).tokens.resize(400, 7);
  edit(last).targets.resize(400, 8);
  run_batch(*free_engine, batch);
  const int64_t whole = free_engine->last_plan().total();
  limited->set_limits(64, 1 << 20, 0, whole - 1);
  run_batch(*limited, batch);
  EXPECT_LT(limited->last_plan().total(), whole);
  const std::vector<float> want = copy_of(free_engine->adapter(AdapterSlot{1}).gradients());
  EXPECT_EQ(copy_of(limited->adapter(AdapterSlot{1}).gradients()), want);

  auto offloading = make({.pass_tokens = 64, .offload = testing::TempDir()});
  batch_of(*offloading, api::Gradients::kAdapters);
  offloading->set_limits(64, 1 << 20, 0, limited->last_plan().total() - 1);
  run_batch(*offloading, batch);
  EXPECT_GT(offloading->last_plan().file_bytes, 0);
  EXPECT_EQ(offloading->last_plan().total() + offloading->last_plan().file_bytes,
            limited->last_plan().total());
  EXPECT_EQ(copy_of(offloading->adapter(AdapterSlot{1}).gradients()), want);

  auto refusing = make({.pass_tokens = 64});
  batch_of(*refusing, api::Gradients::kAdapters);
  refusing->set_limits(64, 1 << 20, 0, limited->last_plan().total() - 1);
  try {
    run_batch(*refusing, batch);
    FAIL() << "a pass beyond its memory ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("sequences[3]: a pass of 400 tokens"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("--memory"), std::string::npos);
  }
  EXPECT_FALSE(refusing->adapter(AdapterSlot{1}).has_gradient);
  EXPECT_FALSE(refusing->adapter(AdapterSlot{2}).has_gradient);
}

TEST(EngineMemory, RecomputeShrinksThePass) {
  int64_t taken[2];
  for (const auto& recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    auto engine = make({.recompute = recompute});
    run_batch(*engine, batch_of(*engine, api::Gradients::kAdapters));
    taken[recompute == model::Recompute::kFull] = engine->backend().scratch().high_water();
  }
  EXPECT_LT(taken[1], taken[0]);
}

}  // namespace
}  // namespace strata::engine
