// strata bench --context: decoding behind tokens that nobody read. Never a time.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "apps/bench/bench.h"
#include "base/error.h"

namespace strata::apps {
namespace {

BenchOptions options(const std::string& work, const std::string& model, int64_t context) {
  BenchOptions o;
  o.work = work;
  o.model = std::string(STRATA_SOURCE_DIR) + model;
  o.threads = 2;
  o.repeat = 1;
  o.json = true;
  o.context = context;
  return o;
}

std::string fault(const BenchOptions& o) {
  try {
    run_bench(o);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Of pages alone, and of entries, rings and open windows.
TEST(BenchContext, LineHasItsCost) {
  for (const char* model : {"/models/tiny-qwen3", "/tests/golden/deepseek_v4/model"}) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_bench(options("decode1", model, 4000)), 0);
    const auto line = boost::json::parse(testing::internal::GetCapturedStdout()).as_object();
    EXPECT_EQ(line.at("context"), 4000);
    EXPECT_GT(line.at("context_cost_ratio").as_double(), 0.0);
    EXPECT_GT(line.at("context_step_s").as_double(), 0.0);
  }
}

TEST(BenchContext, OnlyWhatFitsTheModelAndDecodes) {
  EXPECT_EQ(fault(options("train_s512", "/models/tiny-qwen3", 4000)),
            "--context: train_s512 does not decode");
  EXPECT_EQ(fault(options("prefill512", "/models/tiny-qwen3", 4000)),
            "--context: prefill512 does not decode");
  EXPECT_NE(fault(options("decode1", "/models/tiny-qwen3", 1 << 20)).find("the model's context is"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::apps
