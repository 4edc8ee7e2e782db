// SPDX-License-Identifier: Apache-2.0
// Ranks that deal a batch's micro-batches out among themselves give the bits of one: losses,
// gradients, norms and what ten optimizer steps make.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using schedule::Kind;

// Of a whole model on each rank, whose passes are as short as two sequences.
StagedCase dealt(const std::string& model, int data) {
  StagedCase c = {.model = model, .num_layers = 3, .num_ranks = 1, .data = data};
  c.num_microbatches = 1;
  c.pass_tokens = 8;
  return c;
}

class DataBits : public testing::TestWithParam<StagedCase> {};

TEST_P(DataBits, EqualOneRank) { expect_same_bits(run_staged(GetParam()), run_whole(GetParam())); }

std::vector<StagedCase> families() {
  std::vector<StagedCase> cases;
  for (const char* model : {"llama2", "qwen2_window", "gemma3", "ministral", "qwen3_moe",
                            "deepseek_moe", "deepseek_v4", "qwen3_5", "qwen3_5_moe"}) {
    for (const bool parameters : {false, true}) {
      const bool odd = cases.size() % 4 == 1 || cases.size() % 4 == 2;
      StagedCase c = dealt(model, odd ? 2 : 3);
      c.parameters = parameters;
      c.dtype = odd ? DType::kBF16 : DType::kF32;
      c.again = odd ? Again::kLayers : Again::kNothing;
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, DataBits, testing::ValuesIn(families()));

// The last layer's and the second uses of embedding and head, which are one matrix where tied.
std::vector<StagedCase> second_uses() {
  std::vector<StagedCase> cases;
  for (const bool parameters : {false, true}) {
    for (const bool tied : {false, true}) {
      StagedCase c = dealt("deepseek_v4_mtp", tied ? 3 : 2);
      c.parameters = parameters;
      c.mtp = true;
      c.tied = tied;
      cases.push_back(c);
    }
  }
  StagedCase tied = dealt("qwen3", 2);
  tied.parameters = tied.tied = true;
  cases.push_back(tied);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(SecondUses, DataBits, testing::ValuesIn(second_uses()));

// Loads of experts are whole numbers of all ranks.
TEST(Data, MutableStateOfRouters) {
  StagedCase c = dealt("deepseek_moe", 3);
  c.parameters = true;
  c.router_bias_rate = 0.01;
  expect_same_bits(run_staged(c), run_whole(c));
}

TEST(Data, IndexerLosses) {
  for (const bool parameters : {false, true}) {
    StagedCase c = dealt("deepseek_v4_indexer", 2);
    c.parameters = parameters;
    c.indexer_weight = 0.5f;
    const Outcome whole = run_whole(c);
    EXPECT_TRUE(whole.contains("trained indexer losses"));
    expect_same_bits(run_staged(c), whole);
  }
}

// All in one round; and of more ranks than sequences, some have none.
TEST(Data, OneRound) {
  StagedCase c = dealt("qwen3", 2);
  c.pass_tokens = 1000;
  const Outcome whole = run_whole(c);
  expect_same_bits(run_staged(c), whole);
  c.data = 11;
  expect_same_bits(run_staged(c), whole);
}

// Each data rank is a pipeline.
std::vector<StagedCase> pipelines() {
  std::vector<StagedCase> cases;
  for (const char* model : {"qwen3", "deepseek_v4_mtp", "qwen3_5"}) {
    for (const Kind kind : {Kind::k1f1b, Kind::kGpipe, Kind::kCircular}) {
      const bool odd = cases.size() % 2 == 1;
      StagedCase c = {.model = model,
                      .num_layers = 4,
                      .parameters = !odd,
                      .num_ranks = 2,
                      .data = odd ? 3 : 2,
                      .num_chunks = kind == Kind::kCircular ? 2 : 1,
                      .kind = kind,
                      .num_microbatches = 2};
      c.mtp = std::string(model) == "deepseek_v4_mtp";
      c.tied = std::string(model) == "qwen3";
      c.again = odd ? Again::kStage : Again::kLayers;
      cases.push_back(c);
    }
  }
  // Of adapters nothing comes behind a backward.
  cases.push_back({.num_layers = 4, .num_ranks = 3, .data = 2, .kind = Kind::kZb1p});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Pipelines, DataBits, testing::ValuesIn(pipelines()));

}  // namespace
}  // namespace strata::engine
