// SPDX-License-Identifier: Apache-2.0
// strata bench --context: decoding behind tokens that nobody read. Never a time.
#include "tests/apps/bench_run.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

BenchOptions options(const std::string& work, const std::string& model, int64_t context) {
  BenchOptions o = small_bench(work, model);
  o.context = context;
  return o;
}

// Of pages alone, and of entries, rings and open windows.
TEST(BenchContext, LineHasItsCost) {
  for (const char* model : {"/models/tiny-qwen3", "/tests/golden/deepseek_v4/model"}) {
    const boost::json::object line = line_of(options("decode1", model, 4000));
    EXPECT_EQ(line.at("context"), 4000);
    EXPECT_GT(line.at("context_cost_ratio").as_double(), 0.0);
    EXPECT_GT(line.at("context_step_s").as_double(), 0.0);
  }
}

TEST(BenchContext, OnlyWhatFitsTheModelAndDecodes) {
  EXPECT_EQ(fault_of(options("train_s512", "/models/tiny-qwen3", 4000)),
            "--context: train_s512 does not decode");
  EXPECT_EQ(fault_of(options("prefill512", "/models/tiny-qwen3", 4000)),
            "--context: prefill512 does not decode");
  // Before weights are read, which are not there.
  const testing::TempDir dir;
  BenchOptions o = options("decode1", "/models/tiny-qwen3", 1 << 20);
  std::filesystem::copy_file(o.model + "/config.json", dir.file("config.json"));
  o.model = dir.path();
  EXPECT_NE(fault_of(o).find("the model's context is"), std::string::npos) << fault_of(o);
}

}  // namespace
}  // namespace strata::apps
