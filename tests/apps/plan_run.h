// SPDX-License-Identifier: Apache-2.0
// strata plan on the tiny models of tests/golden: what it prints, and how it refuses.
#pragma once
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "apps/plan/plan.h"
#include "base/error.h"

namespace strata::apps {

inline std::string path_of(const std::string& model) {
  return std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + model + "/model";
}

inline PlanOptions options_of_plan(const std::string& model) {
  PlanOptions options;
  options.model = path_of(model);
  options.dtype = "bf16";
  options.threads = 2;
  options.tokens = "3x40";
  options.rank = 4;
  options.json = true;
  return options;
}

inline boost::json::object plan(const PlanOptions& options, std::string_view word = "train") {
  ::testing::internal::CaptureStdout();
  const int code = run_plan(options, find_plan_mode(word));
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  return boost::json::parse(text).as_object();
}

inline std::string fault(const PlanOptions& options, std::string_view word = "train") {
  try {
    run_plan(options, find_plan_mode(word));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace strata::apps
