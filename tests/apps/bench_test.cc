// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/bench.h"

#include <algorithm>

#include "apps/options.h"
#include "tests/apps/bench_run.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

TEST(Bench, RepeatsAsOftenAsItsOptionAllows) {
  BenchOptions o = small_bench("decode1");
  const OptionTable table = option_table_of(o);
  const std::string refused = "--repeat: got 1001, want 1 to 1000";
  EXPECT_EQ(testing::error_of([&] { table.find("repeat")->set("1001"); }), refused);
  o.repeat = 1001;
  EXPECT_EQ(fault_of(o), refused);
}

// By the count that plans are made with, at the limits that were probed around each run.
TEST(Bench, SaysWhatWasPredicted) {
  for (const char* work : {"train_s512", "prefill512", "decode8"}) {
    BenchOptions o = small_bench(work);
    o.repeat = 2;
    const boost::json::object line = line_of(o);
    const boost::json::array& runs = line.at("runs").as_array();
    ASSERT_EQ(runs.size(), 2u) << work;
    double most = 0;
    for (const boost::json::value& run : runs) {
      EXPECT_GT(run.at("tokens_per_s").as_double(), 0.0) << work;
      EXPECT_GE(run.at("predicted_drift").as_double(), 0.0) << work;
      most = std::max(most, run.at("predicted_tokens_per_s").as_double());
    }
    EXPECT_EQ(line.at("predicted_tokens_per_s").as_double(), most) << work;  // the median of two
  }
  BenchOptions words = small_bench("decode1");
  words.json = false;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_bench(words), 0);
  EXPECT_NE(::testing::internal::GetCapturedStdout().find(" predicted), "), std::string::npos);
}

}  // namespace
}  // namespace strata::apps
