// SPDX-License-Identifier: Apache-2.0
// strata bench cluster: the file that it writes is one that plan train --cluster reads.
#include <gmock/gmock.h>

#include "base/files.h"
#include "setup/cluster_file.h"
#include "tests/apps/bench_run.h"
#include "tests/apps/plan_run.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

BenchOptions options_of_cluster(const std::string& out) {
  BenchOptions options;
  options.work = "cluster";
  options.out = out;
  options.threads = 1;
  return options;
}

std::string fault_of_cluster(const BenchOptions& options) {
  return strata::testing::error_of([&] { run_bench(options); });
}

TEST(BenchCluster, WhatItMeasuresCanBePlannedOn) {
  const strata::testing::TempDir folder;
  const std::string file = folder.file("cluster.toml");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_bench(options_of_cluster(file)), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("cluster.toml: "));
  const Cluster cluster = read_cluster_file(file, DType::kBF16);
  for (const double number : {cluster.limits.flops, cluster.limits.f32_flops, cluster.limits.bytes,
                              cluster.links.link.bytes_per_s})
    EXPECT_GT(number, 1e6);
  EXPECT_GT(cluster.links.link.latency_s, 0.0);
  EXPECT_LT(cluster.links.link.latency_s, 1.0);
  EXPECT_EQ(cluster.links.ranks_per_node, 0);
  PlanOptions planned = options_of_plan("qwen3");
  planned.cluster = file;
  planned.stages.ranks = "pipeline=2";
  planned.schedule.microbatches = 3;
  EXPECT_GT(plan(planned).at("seconds_per_step").as_double(), 0.0);
}

TEST(BenchCluster, AFileSaysWhatItWasMadeOf) {
  const strata::testing::TempDir folder;
  const Cluster cluster = {.limits = {.flops = 3e11, .f32_flops = 1e11, .bytes = 2e10},
                           .memory = int64_t{5} << 30,
                           .links = {.link = {.latency_s = 1.5e-6, .bytes_per_s = 4e9},
                                     .node_link = {.latency_s = 3e-5, .bytes_per_s = 1.25e9},
                                     .ranks_per_node = 2}};
  write_file_atomic(folder.file("c.toml"), cluster_text(cluster));
  const Cluster read = read_cluster_file(folder.file("c.toml"), DType::kBF16);
  EXPECT_EQ(read.limits.flops, 3e11);
  EXPECT_EQ(read.limits.f32_flops, 1e11);
  EXPECT_EQ(read.limits.bytes, 2e10);
  EXPECT_EQ(read.memory, int64_t{5} << 30);
  EXPECT_EQ(read.links.link.latency_s, 1.5e-6);
  EXPECT_EQ(read.links.link.bytes_per_s, 4e9);
  EXPECT_EQ(read.links.node_link.latency_s, 3e-5);
  EXPECT_EQ(read.links.node_link.bytes_per_s, 1.25e9);
  EXPECT_EQ(read.links.ranks_per_node, 2);
}

TEST(BenchCluster, RefusesWhatHasNoEffect) {
  EXPECT_THAT(fault_of_cluster(options_of_cluster("")), HasSubstr("--out FILE.toml"));
  BenchOptions options = options_of_cluster("c.toml");
  options.model = "qwen3";
  EXPECT_EQ(fault_of_cluster(options), "bench cluster: --model: has no effect; leave it out");
  options = options_of_cluster("c.toml");
  options.stages.microbatches = 2;
  EXPECT_THAT(fault_of_cluster(options), HasSubstr("--ranks and --bind alone"));
  options = options_of_cluster("c.toml");
  options.work = "decode1";
  EXPECT_THAT(fault_of_cluster(options), HasSubstr("--out: of strata bench cluster"));
}

}  // namespace
}  // namespace strata::apps
