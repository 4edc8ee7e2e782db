// SPDX-License-Identifier: Apache-2.0
// What tensor ranks have of a model: parts of axes that ascend and leave nothing out, and of every
// parameter the rows that one process has there, wherever a checkpoint stores them.
#include "model/weights/tensor_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "model/weights/load.h"
#include "model/weights/rank_division.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/elementwise.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using strata::testing::error_of;

// Over odd sizes, units and numbers of ranks.
TEST(TensorShare, PartsFillAnAxisInWholeUnits) {
  for (const int64_t unit : {1, 8, 16, 64}) {
    for (const int64_t size : {1, 7, 16, 63, 64, 65, 131, 1000}) {
      const Deal deal = {.size = size, .unit = unit};
      for (int ranks = 1; ranks <= 9; ++ranks) {
        SCOPED_TRACE(::testing::Message() << size << " in " << unit << " over " << ranks);
        int64_t next = 0, least = size, most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const AxisPart part = deal.part_of({rank, ranks});
          EXPECT_EQ(part.first, next);
          if (part.count > 0) {
            EXPECT_EQ(part.first % unit, 0);
          }
          if (rank + 1 < ranks && part.count > 0) {
            EXPECT_TRUE(part.end() % unit == 0 || part.end() == size);
          }
          const int64_t units = (part.count + unit - 1) / unit;
          least = std::min(least, units);
          most = std::max(most, units);
          next = part.end();
        }
        EXPECT_EQ(next, size);
        EXPECT_LE(most - least, 1);
      }
    }
  }
}

// What ranks add to a sum over an axis follows in order, passes at borders of 64, and is of places
// that the rank has or that are right before them.
TEST(TensorShare, ChainsFillAnAxisInOrder) {
  for (const Deal& deal :
       {Deal{.size = 1000}, Deal{.size = 131}, Deal{.size = 40}, Deal{.size = 1040, .unit = 16},
        Deal{.size = 384, .unit = 64}, Deal{.size = 300, .unit = 100, .copied = true},
        Deal{.size = 300, .unit = 150, .copied = true}}) {
    for (const int ranks : {1, 2, 3, 4, 6}) {
      SCOPED_TRACE(::testing::Message() << deal.size << '/' << deal.unit << " over " << ranks);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TensorShare share = {rank, ranks};
        const AxisPart part = deal.part_of(share), chain = deal.chain_of(share);
        EXPECT_LT(deal.num_lead(share), kChainUnit);
        if (next == deal.size || deal.is_copy(share)) {
          EXPECT_EQ(chain.count, 0);
          continue;
        }
        EXPECT_EQ(chain.first, next);
        EXPECT_TRUE(chain.end() % kChainUnit == 0 || chain.end() == deal.size);
        EXPECT_GE(chain.first, part.first - deal.num_lead(share));
        EXPECT_LE(chain.end(), part.end());
        next = chain.end();
      }
      EXPECT_EQ(next, deal.size);
    }
  }
  EXPECT_TRUE((Deal{.size = 384, .unit = 64}.chains_own_places(3)));
  EXPECT_FALSE((Deal{.size = 384}.chains_own_places(4)));
}

// Of 2 units over 6 ranks three have each, in order.
TEST(TensorShare, FewerUnitsThanRanksAreCopied) {
  const Deal deal = {.size = 20, .unit = 10, .copied = true};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(deal.part_of({rank, 6}), (AxisPart{rank < 3 ? 0 : 10, 10})) << rank;
  }
  EXPECT_EQ(deal.part_of({1, 2}), (AxisPart{10, 10}));
}

std::string dir_of(const std::string& golden) {
  return std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + golden + "/model";
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

// Rows of this rank's part are those of the whole at its place.
void expect_rows_of(Backend& backend, const ModelWeights& part, const ModelWeights& whole,
                    size_t index) {
  const Parameter& own = part.table()[index];
  SCOPED_TRACE(own.name);
  EXPECT_EQ(own.name, whole.table()[index].name);
  EXPECT_EQ(own.whole_shape(), whole.table()[index].shape);
  const std::vector<float> all = read_all(backend, whole, index);
  const std::vector<float> rows = read_all(backend, part, index);
  const auto first = all.begin() + own.first_output * own.num_cols();
  ASSERT_LE(own.first_output * own.num_cols() + std::ssize(rows), std::ssize(all));
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), first));
}

// Rows before a rank's own that it has as copies of others'.
int64_t num_copies(const ModelWeights& part, size_t index) {
  const ParamRow* row = part.table()[index].row;
  if (row == nullptr && part.table()[index].outputs.size > 0)
    row = &part.layers().vocabulary_rows().back();
  return row == nullptr ? 0 : row->num_lead_outputs;
}

using LoadCase = std::tuple<const char*, int>;
class TensorShares : public ::testing::TestWithParam<LoadCase> {};

TEST_P(TensorShares, HaveTheRowsOfTheWhole) {
  const auto& [golden, ranks] = GetParam();
  CpuBackend backend(choose_cpu_path(), 1);
  const LoadedModel whole = load_model(backend, dir_of(golden), {.compute_dtype = DType::kF32});
  std::vector<int64_t> rows(whole.weights->table().size(), 0), bytes;
  for (int rank = 0; rank < ranks; ++rank) {
    const LoadedModel part = load_model(backend, dir_of(golden),
                                        {.compute_dtype = DType::kF32, .tensor = {rank, ranks}});
    ASSERT_EQ(part.weights->table().size(), rows.size());
    bytes.push_back(part.weights->num_bytes());
    // Of so few outputs the last rank may have copies of all.
    EXPECT_LE(part.weights->num_bytes(), whole.weights->num_bytes());
    if (rank == 0) {
      EXPECT_LT(part.weights->num_bytes(), whole.weights->num_bytes());
    }
    for (size_t index = 0; index < rows.size(); ++index) {
      expect_rows_of(backend, *part.weights, *whole.weights, index);
      rows[index] += part.weights->table()[index].shape[0] - num_copies(*part.weights, index);
    }
  }
  // A plan for each rank is made of the one with the most.
  const TensorShare largest = largest_share(backend, whole.config, DType::kF32, ranks);
  EXPECT_EQ(largest.num_ranks, ranks);
  EXPECT_EQ(bytes[static_cast<size_t>(largest.rank)], *std::ranges::max_element(bytes));
  // Each has a row at least once, and those that no copies are made of just once.
  for (size_t index = 0; index < rows.size(); ++index) {
    const Parameter& parameter = whole.weights->table()[index];
    const bool divided = parameter.row != nullptr ? parameter.row->shards.axis != ShardAxis::kNone
                                                  : parameter.is_matrix();
    const bool copied = parameter.row != nullptr && parameter.row->shards.copied;
    const int64_t all = parameter.shape[0];
    if (!divided) {
      EXPECT_EQ(rows[index], ranks * all) << parameter.name;
    } else if (copied) {
      EXPECT_EQ(rows[index] % all, 0) << parameter.name;
    } else {
      EXPECT_EQ(rows[index], all) << parameter.name;
    }
  }
}

// Single tensors, biases, shards, one matrix for q, k and v and for gate and up, a tied head, heads
// that are copied, a head's gate, and odd widths.
INSTANTIATE_TEST_SUITE_P(Models, TensorShares,
                         ::testing::Values(LoadCase{"llama2", 2}, LoadCase{"llama2", 4},
                                           LoadCase{"qwen3", 3}, LoadCase{"qwen2", 2},
                                           LoadCase{"qwen2", 4}, LoadCase{"llama_bias_f16", 2},
                                           LoadCase{"llama31_v4_shards", 2}, LoadCase{"phi3", 2},
                                           LoadCase{"gemma2", 4}, LoadCase{"glm4", 2},
                                           LoadCase{"qwen3_moe", 2}, LoadCase{"qwen3_moe_fused", 4},
                                           LoadCase{"gpt_oss", 2}, LoadCase{"deepseek_moe", 4}));

// Delta nets, convolutions, the attention of DeepSeek-V4 and of layers that share keys and values:
// each rank runs them as they are, and divides the MLPs next to them.
TEST(TensorShares, LeaveSomeBlocksWhole) {
  for (const char* const golden : {"deepseek_v4", "qwen3_5", "lfm2", "gemma4_shared"}) {
    SCOPED_TRACE(golden);
    const ModelConfig config = load_config(dir_of(golden), false).config;
    const ModelConfig own = config_of_share(config, {0, 2});
    int64_t whole = 0, divided = 0;
    for (size_t layer = 0; layer < own.layers.size(); ++layer) {
      for (size_t s = 0; s < own.layers[layer].size(); ++s) {
        const bool is_whole = own.layers[layer][s].block == config.layers[layer][s].block;
        EXPECT_EQ(is_whole, !config.layers[layer][s].block.divides());
        ++(is_whole ? whole : divided);
      }
    }
    EXPECT_GT(whole, 0);
    EXPECT_GT(divided, 0);
  }
  const ModelConfig config = load_config(dir_of("llama2"), false).config;
  EXPECT_EQ(config_of_share(config, {}).layers, config.layers);
}

}  // namespace
}  // namespace strata::model
