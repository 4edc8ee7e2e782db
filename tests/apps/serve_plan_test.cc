// SPDX-License-Identifier: Apache-2.0
// How a server divides its memory: the longest datum is the longest that fits a pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "engine/lora_specs.h"
#include "engine/plan/memory_plan.h"
#include "engine/sampling/sampling_loop.h"
#include "engine/work_runner.h"
#include "model/weights/init.h"
#include "ops/cpu/cpu_backend.h"
#include "planner/planner.h"

namespace strata::apps {
namespace {

engine::RunPlan plan_server(engine::Engine& engine, int64_t memory, int64_t rank, int64_t rows) {
  return planner::plan_run({.models = {{.stages = {&engine}}},
                            .memory = memory,
                            .max_rank = rank,
                            .max_sample_rows = rows});
}

// Also where activations may lie in a file, which makes it longer, as more memory does.
TEST(ServePlan, TheLongestDatumIsTheLongestThatFits) {
  constexpr int64_t kRank = 8, kContext = 40000;
  for (const char* name :
       {"qwen3", "qwen3_wide", "qwen3_5", "gemma3", "deepseek_moe", "deepseek_v4_odd"}) {
    auto config = model::load_config(
                      std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model", false)
                      .config;
    config.max_position_embeddings = kContext;
    auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
    auto model = model::init_model(*backend, config, DType::kBF16, /*seed=*/1);
    engine::Engine engine(std::move(backend), std::move(model), {});
    auto other = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
    auto again = model::init_model(*other, config, DType::kBF16, /*seed=*/1);
    engine::Engine offloading(std::move(other), std::move(again), {.offload = testing::TempDir()});
    int64_t with_less = 0;
    for (const int64_t budget : {int64_t{320} << 20, int64_t{512} << 20, int64_t{4} << 30}) {
      const engine::RunPlan plan = plan_server(engine, budget, kRank, 256);
      const int64_t longest = plan.server.longest_data[0];
      const engine::RunPlan longer = plan_server(offloading, budget, kRank, 256);
      EXPECT_EQ(plan.server.file_bytes[0], 0);
      EXPECT_EQ(longer.server.longest_data[0] > longest, longest < kContext)
          << name << ' ' << budget;
      const int64_t inputs = longer.server.longest_data[0] * config.num_layers() *
                             config.state_width() * dtype_bytes(DType::kBF16);
      EXPECT_GE(longer.server.file_bytes[0], longest == kContext ? 0 : inputs)
          << name << ' ' << budget;
      EXPECT_LE(longer.server.file_bytes[0], inputs + Arena::kAlignment * config.num_layers());
      EXPECT_GE(longest, plan.pass.pass_tokens) << name << ' ' << budget;
      EXPECT_GT(longest, std::min(with_less, kContext - 1)) << name << ' ' << budget;
      with_less = longest;
      EXPECT_LE(plan.memory.total(), budget);
      EXPECT_LE(longest, kContext);
      engine::PlanShape shape = {
          .pass_tokens = longest,
          .modules = engine::lora_specs(config, {.rank = kRank}, model::ExpertRank::kDivided),
          .backward = true,
          .recompute = model::Recompute::kFull,
          .alone = true};
      EXPECT_LE(engine::plan_pass(engine, shape).total(), plan.stages[0].pass_bytes)
          << name << ' ' << budget;
      if (longest == kContext) continue;
      ++shape.pass_tokens;
      EXPECT_GT(engine::plan_pass(engine, shape).total(), plan.stages[0].pass_bytes)
          << name << ' ' << budget;
    }
  }
}

std::unique_ptr<engine::Engine> random_engine(const model::ModelConfig& config) {
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
  auto model = model::init_model(*backend, config, DType::kBF16, /*seed=*/1);
  return std::make_unique<engine::Engine>(std::move(backend), std::move(model),
                                          engine::EngineOptions());
}

model::ModelConfig config_of(int layers, int heads) {
  const std::string text =
      fmt::format(R"({{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                  "vocab_size": 512, "hidden_size": 64, "intermediate_size": 64, "head_dim": 32,
                  "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
                  "max_position_embeddings": 2048, "rope_theta": 10000, "rms_norm_eps": 1e-06,
                  "tie_word_embeddings": true}})",
                  layers, heads, heads);
  return model::parse_config(text, "config.json", false).config;
}

// Where one takes more at least than an equal share is, the others have less.
TEST(ServePlan, ModelsOfUnlikeSizesFitTogether) {
  constexpr int64_t kMiB = 1 << 20;
  const std::unique_ptr<engine::Engine> engines[] = {
      random_engine(config_of(4, 16)), random_engine(config_of(1, 1)),
      random_engine(
          model::load_config(std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3_5/model", false)
              .config)};
  planner::ServeRun run = {.models = {}, .max_rank = 8, .max_sample_rows = 16};
  for (const auto& engine : engines) run.models.push_back({.stages = {engine.get()}});
  int64_t num_plans = 0;
  for (run.memory = 100 * kMiB; run.memory < 260 * kMiB; run.memory += 4 * kMiB) {
    engine::RunPlan plan;
    try {
      plan = planner::plan_run(run);
    } catch (const Error&) {
      continue;  // too little for any
    }
    ++num_plans;
    EXPECT_LE(plan.memory.total(), run.memory);
    for (size_t i = 0; i < std::size(engines); ++i) {
      const engine::Engine& engine = *engines[i];
      const int64_t positions = std::min<int64_t>(2048, engine.config().max_position_embeddings);
      EXPECT_GE(plan.server.max_pages[i], engine.kv_pool().pages_for(positions)) << run.memory;
      const bool has_states = engine.cache_layout().state_bytes() > 0;
      EXPECT_GE(plan.server.max_states[i], has_states ? 2 : 0) << run.memory;
    }
  }
  EXPECT_GT(num_plans, 10);
}

// Rows of one token and prompts as long as a step, one of which joins while others read drafts:
// with drafts behind all of them.
class ServePlanOfDrafts : public ::testing::TestWithParam<std::pair<const char*, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Tokens, ServePlanOfDrafts,
                         ::testing::Values(std::pair("deepseek_v4_mtp", 1),
                                           std::pair("deepseek_v4_mtp", 3),
                                           std::pair("qwen3_5_mtp", 1),
                                           std::pair("qwen3_5_mtp", 3)));

TEST_P(ServePlanOfDrafts, AStepFits) {
  constexpr int64_t kRank = 8, kRows = 9;
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
  const auto& [name, drafts] = GetParam();
  auto model = model::load_model(
      *backend, std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + name + "/model",
      {.compute_dtype = DType::kBF16, .mtp = model::UseMtp::kAlways});
  engine::Engine engine(std::move(backend), std::move(model), {.draft_tokens = drafts});
  const engine::RunPlan plan = plan_server(engine, int64_t{512} << 20, kRank, kRows);
  engine.set_limits(plan.pass.pass_tokens, plan.server.max_pages[0], plan.server.max_states[0],
                    plan.stages[0].pass_bytes);
  engine::SamplingLoop loop(engine);
  int64_t steps = 0, most = 0, most_tokens = 0;
  const auto add = [&](int64_t row, int64_t prompt) {
    api::SampleRequest request;
    request.prompt.assign(static_cast<size_t>(prompt), 3);
    request.max_tokens = 12;
    request.temperature = 40.0f;
    request.scaled_logprobs = true;
    request.seed = static_cast<uint64_t>(row);
    loop.add(request);
  };
  for (int64_t row = 0; row < kRows - 4; ++row) add(row, 1);
  for (; !loop.done(); ++steps) {
    if (steps < 4) add(kRows - 1 - steps, plan.pass.pass_tokens);
    loop.step();
    most = std::max(most, engine.last_plan().total());
    most_tokens = std::max(most_tokens, loop.last_tokens());
    EXPECT_LE(engine.last_plan().total(), plan.memory.bytes_of(engine::MemoryUse::kSamplingSteps))
        << "step " << steps;
  }
  EXPECT_GT(most_tokens, plan.pass.pass_tokens);
  EXPECT_GT(loop.drafts().read, 20);
  EXPECT_GT(most, plan.memory.bytes_of(engine::MemoryUse::kSamplingSteps) /
                      2);  // the plan is no guess from above
}

// A large vocabulary, where rows of logits take more than all else: one behind each draft too.
TEST(ServePlanOfManyDrafts, AStepFits) {
  constexpr int64_t kRank = 8, kRows = 64, kDrafts = 3;
  auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), /*threads=*/2);
  auto config = model::load_config(
                    std::string(STRATA_SOURCE_DIR) + "/tests/golden/deepseek_v4_mtp/model", false)
                    .config;
  config.vocab_size = 120'000;
  config.use_mtp = true;
  auto model = model::init_model(*backend, config, DType::kBF16, /*seed=*/1);
  engine::Engine engine(std::move(backend), std::move(model), {.draft_tokens = kDrafts});
  const engine::RunPlan plan = plan_server(engine, int64_t{3} << 30, kRank, kRows);
  engine.set_limits(plan.pass.pass_tokens, plan.server.max_pages[0], plan.server.max_states[0],
                    plan.stages[0].pass_bytes);
  engine::SamplingLoop loop(engine);
  for (int64_t row = 0; row < kRows; ++row) {
    api::SampleRequest request;
    request.prompt = {3};
    request.max_tokens = 6;
    request.temperature = 40.0f;
    request.scaled_logprobs = true;
    request.seed = static_cast<uint64_t>(row);
    loop.add(request);
  }
  int64_t most_tokens = 0;
  for (int64_t steps = 0; !loop.done(); ++steps) {
    loop.step();
    most_tokens = std::max(most_tokens, loop.last_tokens());
    EXPECT_LE(engine.last_plan().total(), plan.memory.bytes_of(engine::MemoryUse::kSamplingSteps))
        << "step " << steps;
  }
  EXPECT_EQ(most_tokens, kRows * (1 + kDrafts));
}

}  // namespace
}  // namespace strata::apps
