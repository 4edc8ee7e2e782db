// SPDX-License-Identifier: Apache-2.0
// Runs of `strata bench` on small models: the line one prints, or why it is refused.
#pragma once
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "apps/bench/bench.h"
#include "base/error.h"

namespace strata::apps {

inline BenchOptions small_bench(const std::string& work,
                                const std::string& model = "/models/tiny-qwen3") {
  BenchOptions o;
  o.work = work;
  o.model = std::string(STRATA_SOURCE_DIR) + model;
  o.threads = 2;
  o.repeat = 1;
  o.json = true;
  return o;
}

inline boost::json::object line_of(const BenchOptions& o) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_bench(o), 0);
  return boost::json::parse(::testing::internal::GetCapturedStdout()).as_object();
}

inline std::string fault_of(const BenchOptions& o) {
  try {
    run_bench(o);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace strata::apps
