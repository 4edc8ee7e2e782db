// SPDX-License-Identifier: Apache-2.0
// Tensor ranks divide every matrix and change no bit: hidden states, logits, logprobs and losses of
// the base and of adapters, on every rank; gradients of adapters, and what ten steps make of them.
#include <gtest/gtest.h>

#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

struct TensorCase {
  const char* model;
  std::vector<int> ranks;
};
void PrintTo(const TensorCase& c, std::ostream* out) { *out << c.model; }

class TensorRanksTest : public ::testing::TestWithParam<TensorCase> {};

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
      SCOPED_TRACE(::testing::PrintToString(c));
      for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
    }
  }
}

TEST_P(TensorRanksTest, TrainAdaptersToTheBitsOfOneProcess) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 2,
                    .dtype = dtype,
                    .num_ranks = 1,
                    .num_microbatches = 1};
    const Outcome want = run_whole(c);
    for (const int ranks : GetParam().ranks) {
      c.tensor = ranks;
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_bits(run_staged(c), want);
    }
  }
}

TEST_P(TensorRanksTest, TrainParametersToTheBitsOfOneProcess) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 2,
                    .parameters = true,
                    .dtype = dtype,
                    .num_ranks = 1,
                    .num_microbatches = 1};
    const Outcome want = run_whole(c);
    for (const int ranks : GetParam().ranks) {
      c.tensor = ranks;
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_bits(run_staged(c), want);
    }
  }
}

// Plain attention and MLPs; biases; norms of heads, and around a block; windows and caps; one
// matrix for q, k and v; gates; a table of tokens that is the head too. Heads of keys are dealt or
// copied. Latent attention. Experts: routers of every kind, with experts that all tokens read, and
// with biases. Blocks that each rank has whole, next to others: delta nets, convolutions, attention
// over compressed keys, and values that layers share.
INSTANTIATE_TEST_SUITE_P(
    Families, TensorRanksTest,
    ::testing::Values(
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
        TensorCase{"glm4_moe_lite", {2}}, TensorCase{"qwen3_5", {2}},
        TensorCase{"qwen3_5_moe", {2}}, TensorCase{"qwen3_next", {2}}, TensorCase{"lfm2", {2}},
        TensorCase{"deepseek_v4", {2}}, TensorCase{"gemma4_shared", {2}}),
    [](const auto& info) { return std::string(info.param.model); });

// Twelve heads, also of keys, twelve experts, and widths of which no border is a multiple of
// anything: chains pass on what lies behind their last border, and ranks have copies of it.
struct OddCase {
  const char* model;
  std::vector<std::pair<const char*, int64_t>> numbers;
};
void PrintTo(const OddCase& c, std::ostream* out) { *out << c.model; }

class OddTensorRanksTest : public ::testing::TestWithParam<OddCase> {};

void train_odd_numbers(const OddCase& odd, bool parameters) {
  StagedCase c = {.model = odd.model,
                  .num_layers = 2,
                  .parameters = parameters,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .numbers = odd.numbers};
  c.numbers.insert(
      c.numbers.end(),
      {{"num_attention_heads", 12}, {"num_key_value_heads", 12}, {"vocab_size", 1037}});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    c.dtype = dtype;
    c.tensor = 1;
    const Outcome want = run_whole(c);
    for (const int ranks : {2, 3, 4}) {
      c.tensor = ranks;
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_bits(run_staged(c), want);
    }
  }
}

TEST_P(OddTensorRanksTest, TrainAdaptersToTheBitsOfOneProcess) {
  train_odd_numbers(GetParam(), /*parameters=*/false);
}
TEST_P(OddTensorRanksTest, TrainParametersToTheBitsOfOneProcess) {
  train_odd_numbers(GetParam(), /*parameters=*/true);
}

INSTANTIATE_TEST_SUITE_P(
    Families, OddTensorRanksTest,
    ::testing::Values(
        OddCase{"llama2", {{"hidden_size", 84}, {"head_dim", 18}, {"intermediate_size", 205}}},
        OddCase{"qwen3", {{"hidden_size", 71}, {"head_dim", 14}, {"intermediate_size", 1205}}},
        OddCase{"gemma3", {{"hidden_size", 69}, {"head_dim", 22}, {"intermediate_size", 131}}},
        OddCase{"olmo2", {{"hidden_size", 96}, {"intermediate_size", 133}}},
        OddCase{"phi3", {{"hidden_size", 120}, {"intermediate_size", 139}}},
        OddCase{"qwen3_moe",
                {{"hidden_size", 75},
                 {"head_dim", 22},
                 {"intermediate_size", 131},
                 {"moe_intermediate_size", 77},
                 {"num_local_experts", 12}}},
        OddCase{"gpt_oss",
                {{"hidden_size", 97}, {"intermediate_size", 75}, {"num_local_experts", 12}}},
        OddCase{"llama4",
                {{"hidden_size", 66},
                 {"intermediate_size", 79},
                 {"intermediate_size_mlp", 131},
                 {"num_local_experts", 12}}},
        OddCase{"deepseek_moe",
                {{"hidden_size", 81},
                 {"intermediate_size", 133},
                 {"moe_intermediate_size", 73},
                 {"n_routed_experts", 12},
                 {"v_head_dim", 11}}},
        OddCase{"glm4_moe_lite",
                {{"hidden_size", 67}, {"moe_intermediate_size", 71}, {"n_routed_experts", 12}}}),
    [](const auto& info) { return std::string(info.param.model); });

// The layer of multi-token prediction, with streams and with joined inputs; routers' biases that
// follow loads; and an embedding that is the head too.
TEST(TensorRanksTest, TrainMultiTokenPrediction) {
  for (const char* const model : {"deepseek_v4_mtp", "qwen3_5_mtp"}) {
    for (const bool parameters : {false, true}) {
      StagedCase c = {.model = model,
                      .num_layers = 3,
                      .parameters = parameters,
                      .num_ranks = 1,
                      .num_microbatches = 1,
                      .mtp = true,
                      .tied = parameters};
      if (parameters && c.model == "deepseek_v4_mtp") c.router_bias_rate = 0.01;
      const Outcome want = run_whole(c);
      c.tensor = 2;
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_bits(run_staged(c), want);
    }
  }
}

// As stages, with data ranks, with weights that these divide, and with gradients of weights behind
// a schedule's backwards.
TEST(TensorRanksTest, TrainWithOtherRanks) {
  for (const bool parameters : {false, true}) {
    StagedCase c = {.model = "qwen3_moe",
                    .num_layers = 4,
                    .parameters = parameters,
                    .num_ranks = 1,
                    .num_microbatches = 1,
                    .tied = parameters};
    const Outcome want = run_whole(c);
    c.tensor = 2;
    for (const bool in_stages : {false, true}) {
      for (const int data : {1, 2}) {
        c.num_ranks = in_stages ? 2 : 1;
        c.num_microbatches = in_stages ? 2 : 1;
        c.kind = !in_stages                ? schedule::Kind::kGpipe
                 : parameters && data == 1 ? schedule::Kind::kZb1p
                                           : schedule::Kind::k1f1b;
        c.data = data;
        c.shards = data > 1 && (parameters || !in_stages);
        SCOPED_TRACE(::testing::PrintToString(c));
        expect_same_bits(run_staged(c), want);
      }
    }
  }
}

// Data ranks own rows of what tensor ranks have, also of copies alone, and of matrices of which
// some ranks have none.
TEST(TensorRanksTest, OwnRowsOfPartsOfMatrices) {
  StagedCase c = {.model = "qwen3",
                  .num_layers = 2,
                  .parameters = true,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .vocab_size = 33,
                  .numbers = {{"hidden_size", 71}, {"head_dim", 14}, {"intermediate_size", 131}}};
  const Outcome want = run_whole(c);
  for (const int tensor : {3, 6}) {
    c.tensor = tensor;
    for (const int data : {1, 2}) {
      c.data = data;
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_bits(run_staged(c), want);
    }
  }
}

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

// Chains of more outputs than one, which borders cut, and of hundreds of rows.
TEST(TensorRanksTest, ChainsOfManyOutputsAndRows) {
  StagedCase c = {.model = "llama2",
                  .num_layers = 1,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .vocab_size = 1500,
                  .times_as_long = 20};
  const Outcome want = run_whole(c);
  for (const int ranks : {2, 4}) {
    c.tensor = ranks;
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_same_bits(run_staged(c), want);
  }
}

}  // namespace
}  // namespace strata::engine
