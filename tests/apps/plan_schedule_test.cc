// SPDX-License-Identifier: Apache-2.0
// strata plan --schedule in process: what it prints and writes, and what it refuses.
#include "apps/plan/plan_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/plan/plan.h"
#include "base/error.h"
#include "base/files.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class PlanSchedule : public ::testing::Test {
 protected:
  PlanSchedule() : dir_(std::filesystem::temp_directory_path() / "strata_plan_schedule_test") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  ~PlanSchedule() override { std::filesystem::remove_all(dir_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (dir_ / name).string(); }
  [[nodiscard]] std::string file(const std::string& text) const {
    std::ofstream(path("in.csv")) << text;
    return path("in.csv");
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    return read_file(path(name), 1 << 20);
  }
  static std::string printed(const PlanScheduleOptions& options, bool as_json = false) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run_plan_schedule(options, as_json), 0);
    return ::testing::internal::GetCapturedStdout();
  }
  static std::string fault(const PlanScheduleOptions& options) {
    try {
      run_plan_schedule(options, false);
    } catch (const Error& error) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);  // exit code 2
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path dir_;
};

TEST_F(PlanSchedule, PrintsBubblesAndPeaks) {
  EXPECT_EQ(printed({.schedule = "1f1b", .pipeline = 2, .microbatches = 3}),
            "schedule 1f1b: 2 ranks, 3 micro-batches, 1 chunks a rank; verified\n"
            "bubbles 0.250000000 of all time, where a forward takes 1, a backward 2 and a transfer "
            "nothing\n"
            "rank  actions  bubbles  peak of live micro-batches\n"
            "----  -------  -------  --------------------------\n"
            "   0        6  25.00 %                           2\n"
            "   1        6  25.00 %                           1\n");
}

TEST_F(PlanSchedule, PrintsAnObject) {
  const auto out = boost::json::parse(
      printed({.schedule = "interleaved", .pipeline = 4, .microbatches = 8, .chunks = 2}, true));
  EXPECT_NEAR(out.at("bubble_share").as_double(), 3.0 / 19, 1e-9);
  EXPECT_EQ(out.at("chunks"), 2);
  ASSERT_EQ(out.at("ranks").as_array().size(), 4u);
  EXPECT_EQ(out.at("ranks").at(3).at("peak_live_microbatches"), 5);
  EXPECT_EQ(out.at("ranks").at(0).at("actions"), 32);
}

TEST_F(PlanSchedule, DrawsATimelineWithARowForEachRank) {
  printed({.schedule = "1f1b", .pipeline = 2, .microbatches = 1, .trace = path("trace.json")});
  std::vector<std::string> bars;
  const auto root = boost::json::parse(content("trace.json"));
  for (const boost::json::value& event : root.at("traceEvents").as_array()) {
    if (event.at("ph") != "X") continue;
    std::ostringstream bar;
    bar << event.at("tid").as_int64() << " " << event.at("name").as_string().c_str() << " "
        << event.at("ts").to_number<double>() << " " << event.at("dur").to_number<double>();
    bars.push_back(bar.str());
  }
  EXPECT_EQ(bars, (std::vector<std::string>{"0 0F0 0 1000", "0 0B0 4000 2000", "1 1F0 1000 1000",
                                            "1 1B0 2000 2000"}));
}

TEST_F(PlanSchedule, WhatItWritesItReads) {
  PlanScheduleOptions options = {.schedule = "zb1p",
                                 .pipeline = 3,
                                 .microbatches = 6,
                                 .chunks = 2,
                                 .schedule_out = path("out.csv")};
  printed(options);
  const std::string computation = content("out.csv");
  EXPECT_THAT(computation, ::testing::StartsWith("0F0,0F1,0F2,3F0,3F1,3F2,"));
  options.with_transfers = true;
  options.schedule_out = path("lowered.csv");
  printed(options);
  EXPECT_THAT(content("lowered.csv"), HasSubstr("0F0,0SEND_F0,"));
  // A file with transfers is verified with them, and written with or without.
  options.schedule = path("lowered.csv");
  options.chunks = 0;
  options.schedule_out = path("again.csv");
  printed(options);
  EXPECT_EQ(content("again.csv"), content("lowered.csv"));
  options.with_transfers = false;
  printed(options);
  EXPECT_EQ(content("again.csv"), computation);
}

TEST_F(PlanSchedule, AFaultOfATableIsNamed) {
  const std::string broken = file("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(fault({.schedule = broken, .pipeline = 2, .microbatches = 2}),
            "schedule: " + broken +
                ": rank 0, slot 1, 0B0: breaks 'no rank waits for what waits for it': it waits for "
                "1B0, which waits for it");
  EXPECT_THAT(fault({.schedule = file("0F0\n1X0"), .pipeline = 2, .microbatches = 1}),
              HasSubstr("rank 1, slot 0: got '1X0'"));
  EXPECT_FALSE(std::filesystem::exists(path("out.csv")));
}

TEST_F(PlanSchedule, WhatDoesNotFitTheFileIsRefusedWithItsNumbers) {
  const std::string two = file("0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(fault({.schedule = two, .pipeline = 3, .microbatches = 1}),
              HasSubstr("2 rows, want --pipeline 3"));
  EXPECT_THAT(fault({.schedule = two, .pipeline = 2, .microbatches = 2}),
              HasSubstr("0F1 is missing"));
  EXPECT_THAT(fault({.schedule = two, .pipeline = 2, .microbatches = 1, .chunks = 2}),
              HasSubstr("2F0 is missing"));
  EXPECT_THAT(fault({.schedule = two, .pipeline = 2, .microbatches = 1, .forwarding_delay = 2}),
              HasSubstr("--forwarding-delay"));
  EXPECT_THAT(
      fault({.schedule = file("0F0,2F0,2B0,0B0\n1F0,1B0\n"), .pipeline = 2, .microbatches = 1}),
      HasSubstr("3 stages do not divide among 2 ranks"));
}

TEST_F(PlanSchedule, WhatIsMissingOrUnknownIsNamed) {
  EXPECT_THAT(fault({.schedule = "gpipe", .microbatches = 1}), HasSubstr("--pipeline"));
  EXPECT_THAT(fault({.schedule = "gpipe", .pipeline = 1}), HasSubstr("--microbatches"));
  EXPECT_THAT(fault({.schedule = "gpip", .pipeline = 1, .microbatches = 1}),
              HasSubstr("--schedule: got 'gpip', want gpipe, circular, 1f1b, interleaved, zb1p, or "
                        "a CSV file"));
  EXPECT_THAT(fault({.schedule = "gpipe", .pipeline = 2, .microbatches = 2, .chunks = 2}),
              HasSubstr("schedule gpipe: 2 ranks, 2 micro-batches, 2 chunks a rank"));
}

}  // namespace
}  // namespace strata::apps
