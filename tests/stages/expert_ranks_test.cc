// SPDX-License-Identifier: Apache-2.0
// Expert ranks divide the experts of every layer and change no bit: hidden states, logits, logprobs
// and losses of the base and of adapters, on every rank.
#include <gtest/gtest.h>

#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

struct ExpertCase {
  const char* model;
  std::vector<int> ranks;
};
void PrintTo(const ExpertCase& c, std::ostream* out) { *out << c.model; }

class ExpertRanksTest : public ::testing::TestWithParam<ExpertCase> {};

TEST_P(ExpertRanksTest, GiveTheBitsOfOneProcess) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 3,
                    .dtype = dtype,
                    .num_ranks = 1,
                    .num_microbatches = 1};
    const Outcome want = score_whole(c);
    for (const int ranks : GetParam().ranks) {
      c.expert = ranks;
      SCOPED_TRACE(::testing::PrintToString(c));
      for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
    }
  }
}

// Routers of every kind; experts that all tokens read, and such with a gate; biases; layers without
// experts among those with them; weights that inputs are times of; paths with norms of their own.
INSTANTIATE_TEST_SUITE_P(
    Families, ExpertRanksTest,
    ::testing::Values(ExpertCase{"qwen3_moe", {2, 3, 6}}, ExpertCase{"qwen3_moe_fused", {7}},
                      ExpertCase{"mixtral", {2, 3}}, ExpertCase{"granitemoe", {3}},
                      ExpertCase{"glm4_moe", {7}}, ExpertCase{"glm4_moe_lite", {2}},
                      ExpertCase{"gpt_oss", {2, 3}}, ExpertCase{"gemma4_moe", {2, 3}},
                      ExpertCase{"llama4", {5}}, ExpertCase{"llama4_experts", {3}},
                      ExpertCase{"deepseek_moe", {2, 4}}, ExpertCase{"deepseek_v2", {2, 3}},
                      ExpertCase{"deepseek_yarn", {4}}, ExpertCase{"deepseek_v4", {5}},
                      ExpertCase{"qwen3_5_moe", {3}}, ExpertCase{"qwen3_next", {2}}),
    [](const auto& info) { return std::string(info.param.model); });

// Losses, gradients and ten steps: of adapters, and of all parameters.
TEST_P(ExpertRanksTest, TrainToTheBitsOfOneProcess) {
  for (const bool parameters : {false, true}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 3,
                    .parameters = parameters,
                    .dtype = parameters ? DType::kF32 : DType::kBF16,
                    .num_ranks = 1,
                    .num_microbatches = 1,
                    .pass_tokens = 16};
    const Outcome want = run_whole(c);
    c.expert = GetParam().ranks.back();
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_same_bits(run_staged(c), want);
  }
}

// With all activations recomputed; Muon; biases of routers that follow loads, of which each rank
// counts all rows; multi-token prediction.
TEST(ExpertRanksTest, TrainInEveryWayToTheBitsOfOneProcess) {
  const StagedCase qwen = {
      .model = "qwen3_moe", .num_layers = 3, .num_ranks = 1, .expert = 3, .num_microbatches = 1};
  StagedCase recomputed = qwen, muon = qwen;
  recomputed.again = Again::kLayers;
  muon.parameters = muon.muon = true;
  const StagedCase deepseek = {.model = "deepseek_v4_mtp",
                               .num_layers = 3,
                               .parameters = true,
                               .dtype = DType::kBF16,
                               .num_ranks = 1,
                               .expert = 5,
                               .num_microbatches = 1,
                               .mtp = true,
                               .router_bias_rate = 0.01};
  for (StagedCase c : {recomputed, muon, deepseek}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Outcome got = run_staged(c);
    c.expert = 1;
    c.again = Again::kNothing;
    expect_same_bits(got, run_whole(c));
  }
}

// Passes of one sequence, of which ranks may have experts that read none.
TEST(ExpertRanksTest, SplitPassesAndExpertsWithoutRows) {
  StagedCase c = {.model = "qwen3_moe",
                  .num_layers = 3,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .pass_tokens = 1};
  const Outcome want = score_whole(c);
  c.expert = 6;
  for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
}

}  // namespace
}  // namespace strata::engine
