// SPDX-License-Identifier: Apache-2.0
// Tensor ranks divide every matrix and change no bit: hidden states, logits, logprobs and losses of
// the base and of adapters, on every rank.
#include <gtest/gtest.h>

#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

struct TensorCase {
  const char* model;
  std::vector<int> ranks;
};
void PrintTo(const TensorCase& c, std::ostream* out) { *out << c.model; }

class TensorRanksTest : public testing::TestWithParam<TensorCase> {};

TEST_P(TensorRanksTest, GiveTheBitsOfOneProcess) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 3,
                    .dtype = dtype,
                    .num_ranks = 1,
                    .num_microbatches = 1};
    const Outcome want = score_whole(c);
    for (const int ranks : GetParam().ranks) {
      c.tensor = ranks;
      SCOPED_TRACE(testing::PrintToString(c));
      for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
    }
  }
}

// Plain attention and MLPs; biases; norms of heads, and around a block; windows and caps; one
// matrix for q, k and v; gates; a table of tokens that is the head too. Heads of keys are dealt or
// copied. Latent attention. Experts: routers of every kind, with experts that all tokens read, and
// with biases.
INSTANTIATE_TEST_SUITE_P(
    Families, TensorRanksTest,
    testing::Values(
        TensorCase{"llama2", {2, 4}}, TensorCase{"llama31", {2, 6}}, TensorCase{"qwen2", {2, 4}},
        TensorCase{"llama_bias_f16", {2, 4}}, TensorCase{"qwen3", {3, 6}}, TensorCase{"gemma", {2}},
        TensorCase{"gemma2", {2, 4}}, TensorCase{"gemma3", {4}}, TensorCase{"gemma4", {2}},
        TensorCase{"glm4", {2, 4}}, TensorCase{"granite", {2}}, TensorCase{"phi3", {2, 4}},
        TensorCase{"phi3_bf16", {4}}, TensorCase{"smollm3", {2}}, TensorCase{"ministral3", {4}},
        TensorCase{"olmo2", {2, 4}}, TensorCase{"olmo3_bf16", {4}}, TensorCase{"qwen2_window", {4}},
        TensorCase{"qwen3_moe", {2, 4}}, TensorCase{"qwen3_moe_fused", {2}},
        TensorCase{"mixtral", {4}}, TensorCase{"granitemoe", {2}}, TensorCase{"glm4_moe", {2, 4}},
        TensorCase{"gpt_oss", {2, 4}}, TensorCase{"gemma4_moe", {2}}, TensorCase{"llama4", {2}},
        TensorCase{"deepseek_mla", {2, 4}}, TensorCase{"deepseek_moe", {4}},
        TensorCase{"deepseek_v2", {2}}, TensorCase{"deepseek_yarn", {3}},
        TensorCase{"glm4_moe_lite", {2}}),
    [](const auto& info) { return std::string(info.param.model); });

// Passes of one sequence, and tables of tokens whose last group is the only one of a rank.
TEST(TensorRanksTest, SplitPassesAndFewTokens) {
  StagedCase c = {.model = "qwen3",
                  .num_layers = 2,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .pass_tokens = 8,
                  .vocab_size = 33};
  const Outcome want = score_whole(c);
  c.tensor = 3;
  for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
}

}  // namespace
}  // namespace strata::engine
