// SPDX-License-Identifier: Apache-2.0
// Any number of stages gives the bits of one: every pair of settings of every family in `make
// test`, and all settings together with STRATA_STAGES=all (`make stages`).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/stages/pairwise.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using schedule::Kind;

std::vector<StagedCase> all_cases() {
  std::vector<StagedCase> cases;
  for (const char* model : {"llama2", "qwen2_window", "qwen3", "gemma3", "ministral", "qwen3_moe",
                            "deepseek_moe", "deepseek_v4", "qwen3_5", "gpt_oss", "gemma2", "lfm2",
                            "gemma4", "gemma4_moe", "gemma4_shared_small", "llama4"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int chunks : {1, 2, 4}) {
        for (const Kind kind :
             {Kind::kGpipe, Kind::kCircular, Kind::k1f1b, Kind::kInterleaved, Kind::kZb1p}) {
          if (chunks > 1 && (kind == Kind::kGpipe || kind == Kind::k1f1b)) continue;
          for (const bool parameters : {false, true}) {
            for (const Again again : {Again::kNothing, Again::kLayers, Again::kStage,
                                      Again::kStageOfItsInput, Again::kBoth}) {
              for (const DType dtype : {DType::kF32, DType::kBF16}) {
                cases.push_back({.model = model,
                                 .num_layers = ranks * chunks + 1,
                                 .parameters = parameters,
                                 .dtype = dtype,
                                 .num_ranks = ranks,
                                 .num_chunks = chunks,
                                 .kind = kind,
                                 .num_microbatches = 2 * ranks,
                                 .again = again});
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

class StagesBits : public testing::TestWithParam<StagedCase> {};

TEST_P(StagesBits, EqualOneStage) {
  expect_same_bits(run_staged(GetParam()), run_whole(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Cases, StagesBits, testing::ValuesIn(chosen_of(all_cases())));

// The peer's third stage ran its second repeat on the first one's weights.
TEST(Stages, ThreeRanksOfTwoRepeatsUseTheirOwnWeights) {
  const StagedCase c = {.num_layers = 6,
                        .num_ranks = 3,
                        .num_chunks = 2,
                        .kind = Kind::kCircular,
                        .num_microbatches = 3};
  expect_same_bits(run_staged(c), run_whole(c));
}

TEST(Stages, OutputsSentWhileTheNextIsComputed) {
  for (const Again again : {Again::kNothing, Again::kLayers, Again::kBoth}) {
    const StagedCase c = {.num_layers = 5,
                          .num_ranks = 2,
                          .num_chunks = 2,
                          .kind = Kind::kCircular,
                          .num_microbatches = 4,
                          .forwarding_delay = 2,
                          .again = again};
    expect_same_bits(run_staged(c), run_whole(c));
  }
}

// Names and bits, whatever is made again.
TEST(Stages, OneLayerEach) {
  StagedCase c = {.num_layers = 4, .num_ranks = 4, .kind = Kind::k1f1b};
  const Outcome whole = run_whole(c);
  for (const Again again :
       {Again::kNothing, Again::kLayers, Again::kStage, Again::kStageOfItsInput, Again::kBoth}) {
    c.again = again;
    expect_same_bits(run_staged(c), whole);
  }
}

TEST(Stages, UnevenLayers) {
  StagedCase c = {.model = "deepseek_v4", .num_layers = 7, .num_ranks = 3};
  c.layers = {1, 4, 2};
  expect_same_bits(run_staged(c), run_whole(c));
}

// The peer lost the last of an odd number of DeepSeek-V4's layers.
TEST(Stages, OddLayersOfDeepseekV4) {
  for (const Kind kind : {Kind::kGpipe, Kind::kCircular}) {
    const StagedCase c = {.model = "deepseek_v4_odd",
                          .num_layers = 5,
                          .parameters = true,
                          .num_ranks = 2,
                          .num_chunks = kind == Kind::kCircular ? 2 : 1,
                          .kind = kind,
                          .again = Again::kLayers};
    const Outcome staged = run_staged(c);
    EXPECT_TRUE(staged.contains("gradient model.layers.4.input_layernorm.weight"));
    expect_same_bits(staged, run_whole(c));
  }
}

// Weight gradients come after the gradient of a stage's input has gone.
TEST(Stages, WeightGradientsApart) {
  for (const char* model : {"llama2", "deepseek_v4_mtp"}) {
    for (const int chunks : {1, 2}) {
      const StagedCase c = {.model = model,
                            .num_layers = 5,
                            .parameters = true,
                            .dtype = chunks == 1 ? DType::kF32 : DType::kBF16,
                            .num_ranks = 2,
                            .num_chunks = chunks,
                            .kind = Kind::kZb1p,
                            .again = chunks == 1 ? Again::kLayers : Again::kNothing,
                            .mtp = std::string(model) == "deepseek_v4_mtp"};
      expect_same_bits(run_staged(c), run_whole(c));
    }
  }
}

// Micro-batches in flight have files of their own.
TEST(Stages, ActivationsInFiles) {
  for (const char* model : {"qwen3", "deepseek_v4_mtp", "qwen3_5_moe"}) {
    for (const Kind kind : {Kind::k1f1b, Kind::kInterleaved, Kind::kZb1p}) {
      const StagedCase c = {.model = model,
                            .num_layers = 6,
                            .parameters = kind == Kind::kZb1p,
                            .num_ranks = kind == Kind::k1f1b ? 3 : 2,
                            .num_chunks = kind == Kind::kInterleaved ? 2 : 1,
                            .kind = kind,
                            .offloads = true,
                            .mtp = std::string(model) == "deepseek_v4_mtp"};
      expect_same_bits(run_staged(c), run_whole(c));
    }
  }
  // One stage whose micro-batches are in flight, and data ranks of two.
  for (const int data : {1, 2}) {
    const StagedCase c = {
        .num_layers = 4, .num_ranks = data, .data = data, .kind = Kind::kGpipe, .offloads = true};
    expect_same_bits(run_staged(c), run_whole(c));
  }
}

// Its layer is the last stage's, with an embedding that the first one has too.
TEST(Stages, MultiTokenPrediction) {
  for (const bool parameters : {false, true}) {
    for (const bool tied : {false, true}) {
      for (const Kind kind : {Kind::k1f1b, Kind::kCircular}) {
        const StagedCase c = {.model = "deepseek_v4_mtp",
                              .num_layers = 4,
                              .parameters = parameters,
                              .dtype = tied ? DType::kF32 : DType::kBF16,
                              .num_ranks = kind == Kind::k1f1b ? 3 : 1,
                              .num_chunks = kind == Kind::k1f1b ? 1 : 4,
                              .kind = kind,
                              .num_microbatches = 3,
                              .again = parameters ? Again::kNothing : Again::kBoth,
                              .mtp = true,
                              .tied = tied};
        const Outcome whole = run_whole(c);
        EXPECT_TRUE(whole.contains("mtp_logits"));
        EXPECT_TRUE(whole.contains("trained mtp losses"));
        expect_same_bits(run_staged(c), whole);
      }
    }
  }
}

// Each stage adds its layers' losses to what the one behind it has, token by token.
TEST(Stages, IndexerLosses) {
  for (const bool parameters : {false, true}) {
    for (const Kind kind : {Kind::k1f1b, Kind::kCircular, Kind::kZb1p}) {
      const StagedCase c = {.model = "deepseek_v4_indexer",
                            .num_layers = 6,
                            .parameters = parameters,
                            .dtype = parameters ? DType::kF32 : DType::kBF16,
                            .num_ranks = kind == Kind::k1f1b ? 3 : 2,
                            .num_chunks = kind == Kind::kCircular ? 2 : 1,
                            .kind = kind,
                            .num_microbatches = 4,
                            .again = parameters ? Again::kNothing : Again::kLayers,
                            .indexer_weight = 0.5f};
      const Outcome whole = run_whole(c);
      EXPECT_TRUE(whole.contains("trained indexer losses"));
      expect_same_bits(run_staged(c), whole);
    }
  }
}

// Routers' biases move by the loads of all micro-batches, in either schedule.
TEST(Stages, MutableStateOfRouters) {
  for (const char* model : {"deepseek_moe", "deepseek_v4_mtp"}) {
    for (const Kind kind : {Kind::kGpipe, Kind::kCircular, Kind::k1f1b}) {
      const StagedCase c = {.model = model,
                            .num_layers = 5,
                            .parameters = true,
                            .num_ranks = 2,
                            .num_chunks = kind == Kind::kCircular ? 2 : 1,
                            .kind = kind,
                            .again = Again::kStageOfItsInput,
                            .mtp = std::string(model) == "deepseek_v4_mtp",
                            .router_bias_rate = 0.01};
      const Outcome whole = run_whole(c);
      int64_t moved = 0;
      for (const auto& [name, values] : whole) {
        if (name.find("correction_bias") == std::string::npos) continue;
        moved += std::count_if(values.begin(), values.end(), [](float v) { return v != 0.0f; });
      }
      EXPECT_GT(moved, 4) << model;
      expect_same_bits(run_staged(c), whole);
    }
  }
}

TEST(Stages, MoreMicrobatchesThanSequencesLeaveOutTheRest) {
  const StagedCase c = {.num_ranks = 2, .kind = Kind::k1f1b, .num_microbatches = 32};
  expect_same_bits(run_staged(c), run_whole(c));
}

}  // namespace
}  // namespace strata::engine
