// SPDX-License-Identifier: Apache-2.0
// strata bench --memory: the same plans as train's. Never a time.
#include "tests/apps/bench_run.h"

namespace strata::apps {
namespace {

BenchOptions options(const std::string& work, const std::string& memory) {
  BenchOptions o = small_bench(work);
  o.memory = memory;
  return o;
}

TEST(BenchMemory, ChoosesWhatFits) {
  const double planned = line_of(options("train_s512", "")).at("planned_gib").as_double() * 1024.0;
  const auto ample = line_of(options("train_s512", "2GiB"));
  EXPECT_EQ(ample.at("pass_tokens"), 2048);
  EXPECT_EQ(ample.at("recompute_gflop").as_double(), 0.0);
  const int64_t budget = static_cast<int64_t>(0.6 * planned);
  const auto tight = line_of(options("train_s512", std::to_string(budget) + "MiB"));
  EXPECT_LE(tight.at("planned_gib").as_double() * 1024.0, static_cast<double>(budget));
  EXPECT_TRUE(tight.at("pass_tokens").as_int64() < 2048 ||
              tight.at("recompute_gflop").as_double() > 0.0);
}

// A work that recomputes everything does what was chosen instead, and is counted so.
TEST(BenchMemory, WhatAWorkRecomputesGivesWay) {
  const auto flops_per_token = [](const boost::json::object& line) {
    return line.at("share_of_limit").as_double() * line.at("matrix_peak_gflops").as_double() /
           line.at("tokens_per_s").as_double();
  };
  const auto keeps = line_of(options("train_s512", "2GiB"));
  const auto recomputes = line_of(options("train_s512_remat", "2GiB"));
  ASSERT_EQ(recomputes.at("recompute_gflop").as_double(), 0.0);
  EXPECT_NEAR(flops_per_token(recomputes) / flops_per_token(keeps), 1.0, 1e-6);
}

// Masters, moments and gradients are planned, and more is computed than of an adapter.
TEST(BenchMemory, OfAllParameters) {
  const BenchOptions adapter = options("train_s512", "");
  BenchOptions all = adapter;
  all.method = "full";
  const auto line = line_of(all);
  EXPECT_EQ(line.at("method"), "full");
  EXPECT_GT(line.at("tokens_per_s").as_double(), 0.0);
  EXPECT_GT(line.at("planned_gib").as_double(), line_of(adapter).at("planned_gib").as_double());
  all.stages.stages = 2;
  EXPECT_EQ(line_of(all).at("method"), "full");
  all = options("decode1", "");
  all.method = "full";
  EXPECT_EQ(fault_of(all), "--method full: decode1 does not train");
  all.work = "train_s512";
  all.weights = "narrow";
  EXPECT_NE(fault_of(all).find("--weights narrow and --method full"), std::string::npos);
}

TEST(BenchMemory, RefusesWhatItCannotHold) {
  EXPECT_EQ(fault_of(options("decode1", "1GiB")), "--memory: decode1 does not train");
  EXPECT_NE(fault_of(options("train_s512", "8MiB")).find("--memory 8MiB: "), std::string::npos);
  BenchOptions both = options("train_s512", "1GiB");
  both.recompute = "full";
  EXPECT_NE(fault_of(both).find("--memory and --recompute: give one"), std::string::npos);
  BenchOptions unused = options("train_s512", "");
  unused.offload = testing::TempDir();
  EXPECT_NE(fault_of(unused).find("--offload: the folder of what --memory does not hold"),
            std::string::npos);
  unused.work = "prefill512";
  EXPECT_EQ(fault_of(unused), "--offload: prefill512 does not train");
  BenchOptions staged = options("train_s512", "1GiB");
  staged.stages.stages = 2;
  EXPECT_NE(fault_of(staged).find("--memory and --stages"), std::string::npos);
  staged.memory = "";
  staged.offload = testing::TempDir();
  EXPECT_NE(fault_of(staged).find("--offload: the folder of what --memory does not hold"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::apps
