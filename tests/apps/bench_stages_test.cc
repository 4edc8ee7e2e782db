// SPDX-License-Identifier: Apache-2.0
// strata bench in stages: what its line says of the division, and what it refuses. Never a time.
#include "tests/apps/bench_run.h"

namespace strata::apps {
namespace {

BenchOptions options(const std::string& work, const StageOptions& stages) {
  BenchOptions o = small_bench(work);
  o.stages = stages;
  return o;
}

TEST(BenchStages, LineSaysHowTheModelIsDivided) {
  const boost::json::object line = line_of(
      options("train_s512",
              {.stages = 2, .schedule = "1f1b", .microbatches = 8, .layers_per_stage = "1,3"}));
  EXPECT_EQ(line.at("layers"), (boost::json::array{1, 3}));
  EXPECT_EQ(line.at("microbatches"), 8);
  EXPECT_EQ(line.at("sequences"), 8);
  EXPECT_EQ(line.at("threads"), 2);
  EXPECT_EQ(line.at("peak_live_microbatches"), 2);  // of rank 0
  EXPECT_NEAR(line.at("bubble_share").as_double(), 1.0 / 9.0, 1e-9);
  EXPECT_LT(line.at("balance").as_double(), 1.0);
  EXPECT_GT(line.at("tokens_per_s").as_double(), 0.0);
}

TEST(BenchStages, OnlyTrainingIsDivided) {
  for (const StageOptions& stages : {StageOptions{.stages = 2}, StageOptions{.schedule = "1f1b"}}) {
    EXPECT_NE(fault_of(options("decode1", stages)).find("decode1 does not train"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace strata::apps
