// SPDX-License-Identifier: Apache-2.0
// What ranks that divide weights load: all of it together, and each little more than its part.
#include "model/weights/weight_shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::model {
namespace {

struct Case {
  const char* golden;
  DType dtype = DType::kF32;
};
std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.golden << ' ' << dtype_name(of.dtype);
}

// Of all parameters that ranks may divide, as they lie.
std::string bytes_of(const ModelWeights& weights) {
  std::string out;
  for (const Parameter& parameter : weights.table()) {
    if (parameter.row != nullptr && parameter.row->balances) continue;
    const void* const data = parameter.is_matrix() ? parameter.panel.data : parameter.values.data;
    out.append(static_cast<const char*>(data), static_cast<size_t>(parameter.bytes));
  }
  return out;
}

double share_of_zeros(const std::string& bytes) {
  return static_cast<double>(std::count(bytes.begin(), bytes.end(), '\0')) /
         static_cast<double>(bytes.size());
}

struct WeightShards : testing::TestWithParam<Case> {
  LoadedModel load(const MemoryShare& share) {
    const std::string dir =
        std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + GetParam().golden + "/model";
    return load_model(backend, dir, {.compute_dtype = GetParam().dtype, .share = share});
  }
  CpuBackend backend{choose_cpu_path(), 1};
};

TEST_P(WeightShards, EachRankReadsItsPart) {
  constexpr int kRanks = 3;
  const std::string whole = bytes_of(*load({}).weights);
  std::string together(whole.size(), '\0');
  for (int rank = 0; rank < kRanks; ++rank) {
    const LoadedModel model = load({rank, kRanks});
    // A third, and what is read at its two ends of each unit.
    EXPECT_GT(share_of_zeros(bytes_of(*model.weights)), 0.35 + 0.65 * share_of_zeros(whole))
        << rank;
    model.weights->shards()->memory().trim();
    const std::string own = bytes_of(*model.weights);
    for (size_t i = 0; i < whole.size(); ++i) {
      if (own[i] == '\0') continue;
      ASSERT_EQ(own[i], whole[i]) << rank << ' ' << i;
      ASSERT_EQ(together[i], '\0') << rank << ' ' << i;
      together[i] = own[i];
    }
  }
  EXPECT_TRUE(together == whole);
}

INSTANTIATE_TEST_SUITE_P(Models, WeightShards,
                         testing::Values(Case{"qwen3"}, Case{"qwen3", DType::kBF16},
                                         Case{"deepseek_mla", DType::kBF16},
                                         Case{"qwen3_moe_fused", DType::kBF16},
                                         Case{"deepseek_v4", DType::kBF16}));

}  // namespace
}  // namespace strata::model
