// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/bench.h"

#include "apps/options.h"
#include "tests/apps/bench_run.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

TEST(Bench, RepeatsAsOftenAsItsOptionAllows) {
  BenchOptions o = small_bench("decode1");
  const OptionTable table = options_of(o);
  const std::string refused = "--repeat: got 1001, want 1 to 1000";
  EXPECT_EQ(testing::error_of([&] { table.find("repeat")->set("1001"); }), refused);
  o.repeat = 1001;
  EXPECT_EQ(fault_of(o), refused);
}

}  // namespace
}  // namespace strata::apps
