// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_log.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/files.h"

namespace strata::report {
namespace {

std::string fresh_path(const char* name) {
  const std::string path = testing::TempDir() + "metrics_" + name + ".jsonl";
  std::filesystem::remove(path);
  return path;
}

std::string content(const std::string& path) { return read_file(path, 1 << 20); }

TEST(MetricsLog, WritesWhatAJsonParserReadsBackExactly) {
  const std::string path = fresh_path("exact");
  const double third = 1.0 / 3.0;
  MetricsLog log(path);
  log.append(3, {{"loss", third}, {"tokens", int64_t{812}}, {"note", std::string_view("a\"b\n")}});
  const boost::json::object object = boost::json::parse(content(path)).as_object();
  EXPECT_EQ(object.at("step").as_int64(), 3);
  EXPECT_EQ(object.at("loss").as_double(), third);
  EXPECT_EQ(object.at("tokens").as_int64(), 812);
  EXPECT_EQ(object.at("note").as_string(), "a\"b\n");
}

TEST(MetricsLog, NotFiniteBecomesNull) {
  const std::string path = fresh_path("nan");
  MetricsLog log(path);
  log.append(1, {{"loss", std::numeric_limits<double>::quiet_NaN()},
                 {"x", std::numeric_limits<double>::infinity()}});
  EXPECT_EQ(content(path), "{\"step\":1,\"loss\":null,\"x\":null}\n");
  EXPECT_TRUE(std::isnan(read_metrics(path)[0].number("loss")));
}

TEST(MetricsLog, AKilledAndResumedRunLeavesTheSameFile) {
  const std::string straight = fresh_path("straight"), killed = fresh_path("killed");
  const auto write_steps = [](MetricsLog& log, int first, int last) {
    for (int step = first; step <= last; ++step) log.append(step, {{"loss", 1.0 / step}});
  };
  MetricsLog whole(straight);
  write_steps(whole, 1, 9);
  {
    MetricsLog log(killed);
    write_steps(log, 1, 7);
  }
  std::ofstream(killed, std::ios::app) << "{\"step\":8,\"lo";  // torn by the kill
  MetricsLog log = MetricsLog::resume(killed, 5);              // the last save was step 5
  write_steps(log, 6, 9);
  EXPECT_EQ(content(killed), content(straight));
  EXPECT_EQ(read_metrics(killed).size(), 9u);
}

TEST(MetricsLog, ResumeWithoutAFileStartsOne) {
  const std::string path = fresh_path("missing");
  MetricsLog log = MetricsLog::resume(path, 10);
  log.append(11, {});
  EXPECT_EQ(content(path), "{\"step\":11}\n");
}

TEST(MetricsLog, AForeignLineIsNamed) {
  const std::string path = fresh_path("foreign");
  std::ofstream(path) << "{\"step\":1}\nhello\n";
  try {
    MetricsLog::resume(path, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path + ":2"), std::string::npos) << error.what();
  }
  std::ofstream(path) << "{\"step\":1,\"loss\":1,\"loss\":2}\n";
  try {
    read_metrics(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the key \"loss\" appears twice"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace strata::report
