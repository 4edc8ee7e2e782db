// SPDX-License-Identifier: Apache-2.0
// strata plan --machine: two plans with one file of limits are the same text, times follow its
// numbers, and a file that will not do is refused by field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "setup/machine_file.h"
#include "tests/apps/plan_run.h"
#include "tests/base/temp_dir.h"
#include "tests/trainer/train_fixture.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class PlanMachine : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  [[nodiscard]] PlanOptions options(const std::string& content) const {
    PlanOptions o = options_of_plan("qwen3");
    o.machine = root_ + "/machine.json";
    write_file_atomic(o.machine, content);
    return o;
  }
  const std::string root_ = ::testing::TempDir() + "/strata_plan_machine";
};

constexpr const char* kSlow =
    R"({"bf16_flops":1e9,"f32_flops":5e8,"read_bytes_per_s":1e9,"file_bytes_per_s":1e8})";
constexpr const char* kFast =
    R"({"bf16_flops":2e9,"f32_flops":1e9,"read_bytes_per_s":2e9,"file_bytes_per_s":2e8})";

TEST_F(PlanMachine, TimesAreThoseOfTheFile) {
  PlanOptions o = options(kSlow);
  const boost::json::object slow = plan(o);
  EXPECT_EQ(std::string(slow.at("limits").as_string()), o.machine);
  EXPECT_EQ(plan(o), slow);
  const boost::json::object fast = plan(options(kFast));
  EXPECT_DOUBLE_EQ(fast.at("seconds_per_step").as_double() * 2,
                   slow.at("seconds_per_step").as_double());
  o = options(kFast);
  o.dtype = "f32";
  EXPECT_EQ(plan(o).at("probed_flops").to_number<double>(), 1e9);
  // And what is written to files and read from them.
  o = options(kSlow);
  o.recompute = "custom:query_proj=offload";
  const double offloaded = plan(o).at("seconds_per_step").as_double();
  write_file_atomic(o.machine, kFast);
  EXPECT_DOUBLE_EQ(plan(o).at("seconds_per_step").as_double() * 2, offloaded);
}

TEST_F(PlanMachine, WhatIsProbedCanBeKept) {
  PlanOptions o = options_of_plan("qwen3");
  o.save_machine = root_ + "/saved.json";
  const boost::json::object first = plan(o);
  o.machine = o.save_machine;
  EXPECT_THAT(fault(o), HasSubstr("--machine and --save-machine: give one"));
  o.save_machine.clear();
  EXPECT_EQ(plan(o), first);
}

TEST_F(PlanMachine, AFileThatWillNotDoIsRefusedByField) {
  EXPECT_THAT(fault(options("[]")), HasSubstr("machine.json: want a JSON object"));
  EXPECT_THAT(fault(options("{}")), HasSubstr("there is no bf16_flops"));
  std::string text = kSlow;
  EXPECT_THAT(fault(options(text.replace(text.find("1e8"), 3, "\"x\""))),
              HasSubstr("file_bytes_per_s: got \"x\", want a positive number"));
  text = kSlow;
  EXPECT_THAT(fault(options(text.replace(text.find("1e8"), 3, "-1"))), HasSubstr("got -1"));
  text = kSlow;
  EXPECT_THAT(fault(options(text.replace(text.find("1e8"), 3, "1e8,\"more\":1"))),
              HasSubstr("unknown field 'more'"));
  PlanOptions o = options(kSlow);
  o.machine += ".missing";
  EXPECT_THAT(fault(o), HasSubstr("No such file"));
}

// The row of the printed table that says how long a step is.
std::string step_row(const TrainOptions& options) {
  ::testing::internal::CaptureStderr();
  const int code = run_train(options);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 0);
  const size_t begin = text.find("\na step");
  return begin == std::string::npos ? text : text.substr(begin, text.find('\n', begin + 1) - begin);
}

TEST_F(TrainTest, AStepIsPredictedByTheFileOfLimits) {
  TrainOptions o = options("whole");
  o.model = deep_model();
  o.steps = 1;
  o.machine = root_ + "/machine.json";
  o.verbose = true;
  EXPECT_THAT(fault(o), HasSubstr("No such file"));
  write_file_atomic(o.machine, kSlow);
  const auto of_file = ::testing::AllOf(HasSubstr(o.machine), HasSubstr(" 500 M FLOP/s"));
  EXPECT_THAT(step_row(o), of_file);
  o.out = root_ + "/within";
  o.memory = "1GiB";
  EXPECT_THAT(step_row(o), of_file);
  o.out = root_ + "/divided";
  o.stages.stages = 2;  // the file's are the whole machine's
  EXPECT_THAT(step_row(o), of_file);
}

}  // namespace
}  // namespace strata::apps
