// SPDX-License-Identifier: Apache-2.0
// A model in stages samples what it samples whole: every token, logprob and value of a prompt, on
// every rank.
#include <gtest/gtest.h>

#include <limits>

#include "backend/thread_comm.h"
#include "base/error.h"
#include "engine/sampling/sampling_loop.h"
#include "model/adapter/specs.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

std::vector<int32_t> tokens_of(int64_t count, int64_t vocab, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

// Of the base and of two adapters, prompts of one piece and of several, with all that can be asked.
std::vector<api::SampleRequest> requests(int64_t vocab) {
  std::vector<api::SampleRequest> out;
  for (uint32_t i = 0; i < 6; ++i) {
    api::SampleRequest& request = out.emplace_back();
    request.prompt = tokens_of(i == 3 ? 90 : 3 + 7 * i, vocab, i + 1);
    request.slot = api::AdapterSlot{static_cast<int32_t>(i % 3)};
    request.max_tokens = 4 + 2 * i;
    request.temperature = i == 0 ? 0.0f : 0.8f;
    request.seed = i;
    request.prompt_logprobs = i % 2 == 1;
  }
  out[1].topk_prompt_logprobs = 3;
  out[2].repetition_penalty = 1.2f;
  out[2].topk_sample_logprobs = 2;
  out[3].prompt_draws = 2;
  return out;
}

void expect_same(const std::vector<api::SampleResult>& got,
                 const std::vector<api::SampleResult>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_FALSE(want[i].tokens.empty());
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    EXPECT_EQ(got[i].logprobs, want[i].logprobs);
    EXPECT_EQ(got[i].stopped, want[i].stopped);
    EXPECT_EQ(got[i].sample_topk_ids, want[i].sample_topk_ids);
    EXPECT_EQ(got[i].sample_topk_logprobs, want[i].sample_topk_logprobs);
    EXPECT_EQ(got[i].prompt_logprobs, want[i].prompt_logprobs);
    EXPECT_EQ(got[i].topk_ids, want[i].topk_ids);
    EXPECT_EQ(got[i].topk_logprobs, want[i].topk_logprobs);
    EXPECT_EQ(got[i].prompt_draw_ids, want[i].prompt_draw_ids);
    EXPECT_EQ(got[i].prompt_draw_logprobs, want[i].prompt_draw_logprobs);
  }
}

std::vector<api::SampleResult> sample_in_stages(const StagedCase& c, int rank,
                                                int64_t prefill_tokens) {
  const PipelinePlan plan = staged_plan(c);
  EngineOptions options = staged_options(c);
  options.prefill_tokens = prefill_tokens;
  std::vector<api::SampleResult> out;
  run_ranks(plan.num_ranks_in_all(), [&](Comm& comm) {
    Runner runner(comm, plan, staged_engines(c, comm, plan, options));
    const model::ModelConfig& config = runner.engine().config();
    const auto specs =
        model::make_adapter_specs(config, {"all-linear", "embed_tokens", "lm_head"}, 3, 16.0);
    // Ranks have their parts of adapters at addresses of any order.
    if (comm.rank() == 1) {
      const api::AdapterSlot slots[] = {runner.create_adapter(specs, 1),
                                        runner.create_adapter(specs, 2)};
      for (const api::AdapterSlot slot : slots) runner.engine().clear_adapter(slot);
    }
    for (const uint64_t seed : {11, 12})
      runner.for_adapter(runner.create_adapter(specs, seed), &stir);
    auto own = sample(runner, requests(config.vocab_size));
    if (comm.rank() == rank) out = std::move(own);
  });
  return out;
}

class StagedSampling : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(StagedSampling, GivesTheBitsOfOneStage) {
  const auto [model, dtype] = GetParam();
  StagedCase c = {
      .model = model, .num_layers = 5, .dtype = dtype, .num_ranks = 1, .num_microbatches = 1};
  const std::vector<api::SampleResult> want = sample_in_stages(c, 0, 2048);
  for (const int num_ranks : {2, 3}) {
    c.num_ranks = num_ranks;
    for (const int64_t prefill_tokens : {2048, 11}) {
      SCOPED_TRACE(testing::Message() << num_ranks << " ranks, " << prefill_tokens);
      expect_same(sample_in_stages(c, 0, prefill_tokens), want);
      expect_same(sample_in_stages(c, num_ranks - 1, prefill_tokens), want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StagedSampling,
                         testing::Combine(testing::Values("qwen3", "deepseek_mla", "qwen3_5",
                                                          "deepseek_v4", "qwen3_moe", "gpt_oss",
                                                          "gemma2", "lfm2", "gemma4",
                                                          "gemma4_shared_small", "llama4"),
                                          testing::Values(DType::kF32, DType::kBF16)));

class TensorSampling : public testing::TestWithParam<std::tuple<std::string, int, DType>> {};

// Prefill in one piece and in several, and decoding, on tensor ranks.
TEST_P(TensorSampling, GivesTheBitsOfOneRank) {
  const auto [model, ranks, dtype] = GetParam();
  StagedCase c = {
      .model = model, .num_layers = 3, .dtype = dtype, .num_ranks = 1, .num_microbatches = 1};
  const std::vector<api::SampleResult> want = sample_in_stages(c, 0, 2048);
  c.tensor = ranks;
  for (const int64_t prefill_tokens : {2048, 11}) {
    SCOPED_TRACE(prefill_tokens);
    expect_same(sample_in_stages(c, 0, prefill_tokens), want);
    expect_same(sample_in_stages(c, ranks - 1, prefill_tokens), want);
  }
}

using Dealt = std::tuple<std::string, int, DType>;
INSTANTIATE_TEST_SUITE_P(
    All, TensorSampling,
    testing::Values(Dealt{"llama2", 2, DType::kF32}, Dealt{"llama2", 4, DType::kBF16},
                    Dealt{"qwen3", 3, DType::kF32}, Dealt{"qwen3", 3, DType::kBF16},
                    Dealt{"gemma3", 4, DType::kBF16}, Dealt{"qwen2_window", 4, DType::kF32},
                    Dealt{"phi3", 2, DType::kBF16}));

class ExpertSampling
    : public testing::TestWithParam<std::tuple<std::string, std::vector<int>, DType>> {};

// The same on expert ranks, of which most have experts that no row of a small pass has chosen.
TEST_P(ExpertSampling, GivesTheBitsOfOneRank) {
  const auto [model, numbers_of_ranks, dtype] = GetParam();
  StagedCase c = {
      .model = model, .num_layers = 3, .dtype = dtype, .num_ranks = 1, .num_microbatches = 1};
  const std::vector<api::SampleResult> want = sample_in_stages(c, 0, 2048);
  for (const int ranks : numbers_of_ranks) {
    c.expert = ranks;
    for (const int64_t prefill_tokens : {2048, 11}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << prefill_tokens << " tokens");
      expect_same(sample_in_stages(c, ranks - 1, prefill_tokens), want);
    }
  }
}

using DealtExperts = std::tuple<std::string, std::vector<int>, DType>;
INSTANTIATE_TEST_SUITE_P(All, ExpertSampling,
                         testing::Values(DealtExperts{"qwen3_moe", {2, 3, 6}, DType::kBF16},
                                         DealtExperts{"qwen3_moe", {6}, DType::kF32},
                                         DealtExperts{"gpt_oss", {2, 3}, DType::kBF16},
                                         DealtExperts{"gemma4_moe", {3}, DType::kBF16},
                                         DealtExperts{"llama4", {5}, DType::kF32},
                                         DealtExperts{"deepseek_v2", {3, 4}, DType::kBF16},
                                         DealtExperts{"deepseek_v4", {5}, DType::kBF16},
                                         DealtExperts{"qwen3_5_moe", {2}, DType::kF32}));

// Logits that are no numbers end a row on every rank, with the sentence that one stage has.
TEST(StagedSampling, ARowThatCannotBeReadEndsOnAllRanks) {
  const auto fault_of = [](int num_ranks) {
    const StagedCase c = {.num_ranks = num_ranks, .num_microbatches = 1};
    const PipelinePlan plan = staged_plan(c);
    std::vector<std::string> faults(static_cast<size_t>(num_ranks));
    run_ranks(num_ranks, [&](Comm& comm) {
      Runner runner(comm, plan, staged_engines(c, comm, plan));
      Engine& engine = runner.engine();
      const auto specs = model::make_adapter_specs(engine.config(), {"lm_head"}, 3, 16.0);
      const api::AdapterSlot slot = runner.create_adapter(specs, 11);
      runner.for_adapter(slot, [](model::LoraAdapter& adapter) {
        const HostAccess access(cpu_allocator());
        for (const model::LoraModule& module : adapter.modules()) {
          if (module.held()) module.b.f32()[0] = std::numeric_limits<float>::infinity();
        }
        adapter.refresh(adapter.backend());
      });
      SamplingLoop loop(runner);
      const size_t sick = loop.add({.prompt = {1, 2, 3}, .slot = slot, .max_tokens = 4});
      const size_t well = loop.add({.prompt = {1, 2, 3}, .max_tokens = 4});
      while (!loop.done()) loop.step();
      EXPECT_EQ(loop.take_result(well).tokens.size(), 4u);
      try {
        loop.take_result(sick);
      } catch (const Error& error) {
        faults[static_cast<size_t>(comm.rank())] = error.what();
      }
    });
    return faults;
  };
  const std::string whole = fault_of(1)[0];
  EXPECT_NE(whole, "");
  EXPECT_EQ(fault_of(2), std::vector<std::string>(2, whole));
}

}  // namespace
}  // namespace strata::engine
