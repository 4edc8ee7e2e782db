// What a run takes: a warm step allocates nothing but its result, training takes no KV cache,
// recompute makes a pass smaller, and the plan of a pass covers what the pass took.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/engine.h"
#include "engine/memory_plan.h"

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
  auto backend = std::make_unique<Backend>(choose_cpu_path(), /*threads=*/2);
  auto model = model::load_model(
      *backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model",
      {.compute_dtype = DType::kBF16});
  return std::make_unique<Engine>(std::move(backend), std::move(model), options);
}

// Two adapters and the base, uneven lengths, more than one pass.
api::Batch batch_of(Engine& engine, api::Gradients gradients) {
  const auto specs =
      model::adapter_specs(engine.config(), {"all-linear", "embed_tokens", "lm_head"}, 4, 8.0);
  const AdapterSlot slots[] = {AdapterSlot::kBase, engine.create_adapter(specs, 1),
                               engine.create_adapter(specs, 2)};
  api::Batch batch;
  batch.gradients = gradients;
  for (const int length : {90, 7, 33, 64}) {
    api::Sequence sequence;
    sequence.slot = gradients == api::Gradients::kParameters ? AdapterSlot::kBase
                                                             : slots[batch.sequences.size() % 3];
    for (int t = 0; t < length; ++t) {
      sequence.tokens.push_back((7 * t + length) % static_cast<int>(engine.config().vocab_size));
      sequence.targets.push_back((5 * t + 1) % static_cast<int>(engine.config().vocab_size));
    }
    batch.sequences.push_back(std::move(sequence));
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
  const auto step = [&, gradients = gradients] {
    const api::BatchResult result = engine->run(batch);
    if (gradients == api::Gradients::kParameters) {
      engine->step(AdapterSlot::kBase, {.grad_clip_norm = 1.0});
    } else {
      engine->step(AdapterSlot{1}, {.grad_clip_norm = 1.0});
      engine->step(AdapterSlot{2}, {});
    }
    return result.num_passes;
  };
  EXPECT_GE(step(), 2);
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
                     testing::Values(model::Recompute::kNone, model::Recompute::kFull),
                     testing::Values("qwen3", "deepseek_mla", "qwen3_moe", "deepseek_moe")));

TEST(EngineMemory, TrainingTakesNoCache) {
  auto engine = make({});
  engine->run(batch_of(*engine, api::Gradients::kAdapters));
  EXPECT_EQ(engine->kv_pool().num_bytes(), 0);
}

// One row of latent and rotated key a token and layer, whatever the number of heads.
TEST(EngineMemory, TheLatentCacheGrowsWithTheLatent) {
  auto engine = make({}, "deepseek_mla");
  api::SampleRequest request;
  request.prompt.assign(100, 3);
  request.max_tokens = 2;
  engine->sample({request});
  const KvPool& pool = engine->kv_pool();
  const model::ModelConfig& c = engine->config();
  EXPECT_EQ(pool.num_bytes(), pool.num_pages() * pool.page_size() * c.num_layers * 2 *
                                  (c.mla.kv_lora_rank + c.mla.rope_dim));
}

// A latent model whose layers are large against the plan's allowance for packed copies.
TEST(EngineMemory, ThePlanCoversALatentPass) {
  const std::string config = R"({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 64,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 16,
    "q_lora_rank": 48, "kv_lora_rank": 96, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 24, "first_k_dense_replace": 1, "max_position_embeddings": 4096})";
  for (const bool backward : {false, true}) {
    auto backend = std::make_unique<Backend>(choose_cpu_path(), /*threads=*/2);
    auto loaded =
        model::init_model(*backend, model::parse_config(config, "c", true).config, DType::kBF16, 1);
    Engine engine(std::move(backend), std::move(loaded), {.pass_tokens = 2048});
    api::Batch batch =
        batch_of(engine, backward ? api::Gradients::kAdapters : api::Gradients::kNone);
    for (api::Sequence& sequence : batch.sequences) {
      sequence.tokens.assign(500, 3);
      sequence.targets.assign(500, 5);
    }
    Scratch& scratch = engine.backend().scratch();
    const int64_t grown = scratch.grown();
    engine.run(batch);
    const int64_t planned =
        plan_pass_bytes(engine, {.pass_tokens = 2000, .rank = 4, .backward = backward});
    EXPECT_EQ(scratch.grown(), grown);
    EXPECT_LE(scratch.high_water(), planned);
    EXPECT_GE(2 * scratch.high_water(), planned);
  }
}

// Experts whose rows are large against the plan's allowance for packed copies.
TEST(EngineMemory, ThePlanCoversAPassOfExperts) {
  const std::string config = R"({"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 64,
    "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_experts": 24, "num_experts_per_tok": 6,
    "moe_intermediate_size": 96, "norm_topk_prob": true, "max_position_embeddings": 4096})";
  for (const bool backward : {false, true}) {
    auto backend = std::make_unique<Backend>(choose_cpu_path(), /*threads=*/2);
    auto loaded =
        model::init_model(*backend, model::parse_config(config, "c", true).config, DType::kBF16, 1);
    Engine engine(std::move(backend), std::move(loaded), {.pass_tokens = 2048});
    api::Batch batch =
        batch_of(engine, backward ? api::Gradients::kAdapters : api::Gradients::kNone);
    for (api::Sequence& sequence : batch.sequences) {
      for (int t = 0; t < 500; ++t) {
        sequence.tokens.resize(500, (11 * t) % 64);
        sequence.targets.resize(500, 5);
      }
    }
    Scratch& scratch = engine.backend().scratch();
    const int64_t grown = scratch.grown();
    engine.run(batch);
    const int64_t planned = plan_pass_bytes(
        engine, {.pass_tokens = 2000, .rank = 4, .expert_rank = 1, .backward = backward});
    EXPECT_EQ(scratch.grown(), grown);
    EXPECT_LE(scratch.high_water(), planned);
    EXPECT_GE(2 * scratch.high_water(), planned);
  }
}

TEST(EngineMemory, ThePlanCoversThePassAndRecomputeShrinksIt) {
  int64_t taken[2];
  for (const auto recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
    auto engine = make({.recompute = recompute});
    const api::Batch batch = batch_of(*engine, api::Gradients::kAdapters);
    Scratch& scratch = engine->backend().scratch();
    const int64_t grown = scratch.grown();  // while the model was loaded
    engine->run(batch);
    EXPECT_EQ(scratch.grown(), grown);
    EXPECT_LE(scratch.high_water(),
              plan_pass_bytes(*engine, {.pass_tokens = 194, .rank = 4, .backward = true}));
    taken[recompute == model::Recompute::kFull] = scratch.high_water();
  }
  EXPECT_LT(taken[1], taken[0]);
}

}  // namespace
}  // namespace strata::engine
