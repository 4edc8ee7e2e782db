// strata bench in stages: what its line says of the division, and what it refuses. Never a time.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "apps/bench/bench.h"
#include "base/error.h"

namespace strata::apps {
namespace {

BenchOptions options(const std::string& work, const StageOptions& stages) {
  BenchOptions o;
  o.work = work;
  o.model = std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3";
  o.threads = 2;
  o.repeat = 1;
  o.json = true;
  o.stages = stages;
  return o;
}

TEST(BenchStages, LineSaysHowTheModelIsDivided) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_bench(options(
                "train_s512",
                {.stages = 2, .schedule = "1f1b", .microbatches = 8, .layers_per_stage = "1,3"})),
            0);
  const auto line = boost::json::parse(testing::internal::GetCapturedStdout()).as_object();
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
    try {
      run_bench(options("decode1", stages));
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("decode1 does not train"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace strata::apps
