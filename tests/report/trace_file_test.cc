// SPDX-License-Identifier: Apache-2.0
#include "report/trace_file.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <thread>

#include "base/error.h"

namespace strata::report {
namespace {

namespace json = boost::json;

TEST(TraceJson, IsChromesTraceFormat) {
  const std::vector<TracedThread> threads = {
      {.name = "main \"1\"",
       .spans = {{.name = "gqa", .key = "layer", .number = 7, .start_ns = 1500, .end_ns = 4000},
                 {.name = "forward", .key = {}, .start_ns = 1500, .end_ns = 2'000'001},
                 {.name = "first", .key = {}, .start_ns = 0, .end_ns = 5}},
       .num_lost = 2},
      {.name = "worker 1", .num_lost = 3}};
  const json::object root = json::parse(trace_json(threads)).as_object();
  EXPECT_EQ(root.at("otherData").at("spans_lost"), 5);
  const json::array& events = root.at("traceEvents").as_array();
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[0], json::parse(R"({"name":"thread_name","ph":"M","pid":1,"tid":0,
      "args":{"name":"main \"1\""}})"));
  EXPECT_EQ(events[1], json::parse(R"({"name":"thread_sort_index","ph":"M","pid":1,"tid":0,
      "args":{"sort_index":0}})"));
  EXPECT_EQ(events[2].at("name"), "first");
  EXPECT_EQ(events[3], json::parse(R"({"name":"forward","ph":"X","pid":1,"tid":0,
      "ts":1.500,"dur":1998.501})"));
  EXPECT_EQ(events[4], json::parse(R"({"name":"gqa","ph":"X","pid":1,"tid":0,
      "ts":1.500,"dur":2.500,"args":{"layer":7}})"));
  EXPECT_EQ(events[5].at("args").at("name"), "worker 1");
}

TEST(TraceJson, IsWholeWithoutAnySpan) {
  EXPECT_EQ(json::parse(trace_json({})).at("traceEvents").as_array().size(), 0u);
}

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest() : path_(testing::TempDir() + "strata_trace_file_test.json") {
    std::filesystem::remove(path_);
  }
  ~TraceFileTest() override { std::filesystem::remove(path_); }
  std::string path_;
};

TEST_F(TraceFileTest, WritesWhatRanMeanwhile) {
  TraceFile file(path_);
  {
    const TraceSpan span("step", "step", 1);
  }
  file.finish();
  {
    const TraceSpan span("later");
  }
  const std::string text = read_file(path_, 1 << 20);
  EXPECT_EQ(json::parse(text).at("traceEvents").as_array().size(), 3u);
  EXPECT_EQ(text.find("later"), std::string::npos);
}

TEST_F(TraceFileTest, WorkersAreBelowWhoLeadsThem) {
  TraceFile file(path_);
  for (const char* name : {"worker 10", "worker 2", "engine"}) {
    std::thread([name] {
      name_thread(name);
      const TraceSpan span("work");
    }).join();
  }
  file.finish();
  const json::value root = json::parse(read_file(path_, 1 << 20));
  std::vector<std::string> rows;
  for (const json::value& event : root.at("traceEvents").as_array()) {
    if (event.at("name") != "thread_name") continue;
    rows.emplace_back(event.at("args").at("name").as_string());
    EXPECT_EQ(event.at("tid"), rows.size() - 1);
  }
  EXPECT_EQ(rows, (std::vector<std::string>{"engine", "worker 2", "worker 10"}));
}

TEST_F(TraceFileTest, WithoutAnEndThereIsNoFile) {
  {
    TraceFile file(path_);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  const TraceSpan span("after");
  EXPECT_TRUE(stop_trace().empty());
}

TEST_F(TraceFileTest, AnEmptyPathTracesNothing) {
  TraceFile file("");
  {
    const TraceSpan span("step");
  }
  EXPECT_TRUE(stop_trace().empty());
  file.finish();
}

TEST_F(TraceFileTest, WhatCannotBeWrittenIsRefusedBeforeTheRun) {
  EXPECT_THROW(TraceFile("/nonexistent/folder/trace.json"), Error);
}

}  // namespace
}  // namespace strata::report
