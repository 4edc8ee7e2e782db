// SPDX-License-Identifier: Apache-2.0
// What expert ranks have of a model: of each layer expert e of E on rank floor(e ranks / E), with
// the values that one process has there, and all else whole.
#include "model/weights/expert_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/weights/init.h"
#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/elementwise.h"

namespace strata::model {
namespace {

TEST(ExpertShare, DealsEachExpertOnce) {
  for (const int64_t experts : {2, 5, 6, 7, 12, 128}) {
    for (int ranks = 1; ranks <= std::min<int64_t>(experts, 6); ++ranks) {
      SCOPED_TRACE(::testing::Message() << experts << " over " << ranks);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const AxisPart own = ExpertShare{rank, ranks}.own_experts(experts);
        EXPECT_EQ(own.first, next);
        EXPECT_GE(own.count, experts / ranks);
        EXPECT_LE(own.count, (ExpertShare{0, ranks}.own_experts(experts).count));
        next = own.end();
        for (int64_t e = own.first; e < own.end(); ++e)
          EXPECT_EQ((ExpertShare{0, ranks}.rank_of(e, experts)), rank) << e;
        EXPECT_EQ(own.first * ranks / experts, rank);
      }
      EXPECT_EQ(next, experts);
    }
  }
}

std::vector<float> read_all(Backend& backend, const ModelWeights& weights, size_t index) {
  const Parameter& parameter = weights.table()[index];
  const Scratch::Mark mark(backend.scratch());
  const TensorView rows =
      backend.scratch().take(DType::kF32, {parameter.num_rows(), parameter.num_cols()});
  weights.read_rows(backend, index, 0, rows);
  std::vector<float> values(static_cast<size_t>(rows.shape.num_elements()));
  ops::to_host(backend, rows, values);
  return values;
}

// Holds this rank's experts and what is no expert, with the whole model's values.
void expect_share_of(Backend& backend, const ModelWeights& part, const ModelWeights& whole,
                     const ExpertShare& share) {
  ASSERT_EQ(part.table().size(), whole.table().size());
  for (size_t index = 0; index < whole.table().size(); ++index) {
    const Parameter& own = part.table()[index];
    SCOPED_TRACE(own.name);
    EXPECT_EQ(own.name, whole.table()[index].name);
    EXPECT_EQ(own.shape, whole.table()[index].shape);
    const bool is_own =
        own.expert < 0 || share.rank_of(own.expert, own.row->num_experts) == share.rank;
    ASSERT_EQ(own.held, is_own);
    if (is_own) {
      EXPECT_EQ(read_all(backend, part, index), read_all(backend, whole, index));
    }
  }
}

// Experts as tensors of their own and as rows of one, with biases, as codes, and drawn.
TEST(ExpertShare, ARankHoldsItsExperts) {
  struct Case {
    std::string golden;
    int ranks;
  };
  CpuBackend backend(choose_cpu_path(), 2);
  for (const Case& c :
       {Case{"qwen3_moe", 3}, Case{"mixtral", 2}, Case{"gpt_oss", 2}, Case{"gemma4_moe", 3},
        Case{"llama4", 5}, Case{"deepseek_v2", 4}, Case{"qwen3_moe", 4}, Case{"gpt_oss", 4}}) {
    const std::string dir = std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + c.golden + "/model";
    const LoadedModel whole = load_model(backend, dir, {.compute_dtype = DType::kBF16});
    const LoadedModel drawn = init_model(backend, whole.config, DType::kF32, 5);
    for (int rank = 0; rank < c.ranks; ++rank) {
      SCOPED_TRACE(::testing::Message() << c.golden << " rank " << rank);
      const ExpertShare share = {rank, c.ranks};
      const LoadedModel part =
          load_model(backend, dir, {.compute_dtype = DType::kBF16, .expert = share});
      expect_share_of(backend, *part.weights, *whole.weights, share);
      int64_t bytes = 0;
      for (const Parameter& parameter : whole.weights->table()) {
        const bool is_own = parameter.expert < 0 ||
                            share.rank_of(parameter.expert, parameter.row->num_experts) == rank;
        if (is_own) bytes += parameter.bytes;
      }
      EXPECT_EQ(part.weights->num_bytes(), bytes);
      const LoadedModel part_of_drawn =
          init_model(backend, whole.config, DType::kF32, 5, {}, {}, {}, share);
      expect_share_of(backend, *part_of_drawn.weights, *drawn.weights, share);
    }
  }
}

}  // namespace
}  // namespace strata::model
