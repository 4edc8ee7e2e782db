// SPDX-License-Identifier: Apache-2.0
// strata plan train --search: the best division is the best of all that the same plan simulates one
// by one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/apps/plan_run.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

class PlanSearch : public ::testing::Test {
 protected:
  [[nodiscard]] PlanOptions options(int ranks, const std::string& memory = "\"1GiB\"",
                                    double latency_s = 1e-5) const {
    PlanOptions o = options_of_plan("smollm3");
    o.tokens = "8x40";
    o.micro_tokens = 40;
    o.search = ranks;
    o.cluster = folder_.file("cluster.toml");
    write_file_atomic(o.cluster, fmt::format("flops = 2e9\nread_bytes_per_s = 1e9\nmemory = {}\n"
                                             "link_latency_s = {}\nlink_bytes_per_s = 1e9\n",
                                             memory, latency_s));
    return o;
  }
  const TempDir folder_;
};

// The same division by hand.
PlanOptions by_hand(PlanOptions o, const boost::json::value& found) {
  const auto text = [&](const char* name) { return std::string(found.at(name).as_string()); };
  const auto number = [&](const char* name) { return static_cast<int>(found.at(name).as_int64()); };
  o.search = 0;
  o.stages.ranks = text("ranks");
  o.recompute = text("recompute");
  if (o.stages.ranks.starts_with("pipeline=1,")) return o;
  o.stages.schedule = text("schedule");
  o.schedule.microbatches = number("microbatches");
  o.schedule.chunks = number("chunks");
  return o;
}

boost::json::value division(const std::string& ranks, const std::string& schedule, int microbatches,
                            int chunks) {
  return {{"ranks", ranks},
          {"schedule", schedule},
          {"microbatches", microbatches},
          {"chunks", chunks},
          {"recompute", "none"}};
}

// Every division of a model of five layers among four ranks, of eight sequences.
std::vector<boost::json::value> all_divisions_among_four() {
  std::vector<boost::json::value> all = {division("pipeline=1,data=4", "gpipe", 1, 1)};
  for (const int pipeline : {2, 4}) {
    const int data = 4 / pipeline;
    const std::string ranks = fmt::format("pipeline={},data={}", pipeline, data);
    for (int m = 1; m <= 8 / data; m *= 2) {
      for (const char* schedule : {"gpipe", "1f1b", "zb1p"})
        all.push_back(division(ranks, schedule, m, 1));
      if (pipeline == 4) continue;  // two chunks are eight stages
      for (const char* schedule : {"circular", "interleaved", "zb1p"}) {
        if (m == 1 && std::string_view(schedule) == "circular") continue;
        all.push_back(division(ranks, schedule, m, 2));
      }
    }
  }
  return all;
}

double seconds(const boost::json::value& planned) {
  return planned.at("seconds_per_step").as_double();
}

TEST_F(PlanSearch, FindsTheFastestOfAllDivisions) {
  for (const double latency_s : {1e-5, 1e-2}) {
    for (const char* method : {"lora", "full"}) {
      SCOPED_TRACE(fmt::format("{} {}", method, latency_s));
      PlanOptions o = options(4, "\"1GiB\"", latency_s);
      o.method = method;
      const boost::json::object found = plan(o);
      std::vector<double> all;
      for (const boost::json::value& one : all_divisions_among_four()) {
        const PlanOptions same = by_hand(o, one);
        const bool is_refused = o.method == "full" && same.stages.schedule == "zb1p" &&
                                same.stages.ranks == "pipeline=2,data=2";
        if (!is_refused) all.push_back(seconds(plan(same)));
      }
      std::ranges::sort(all);
      const boost::json::array& best = found.at("best").as_array();
      ASSERT_EQ(best.size(), 10u);
      for (size_t i = 0; i < best.size(); ++i) EXPECT_DOUBLE_EQ(seconds(best[i]), all[i]) << i;
      EXPECT_EQ(found.at("simulated").as_int64() + found.at("ruled_out").as_int64(),
                static_cast<int64_t>(all.size()));
      EXPECT_EQ(plan(o), found);
    }
  }
}

TEST_F(PlanSearch, APlanByHandHasWhatWasFound) {
  const PlanOptions o = options(4);
  const boost::json::object all = plan(o);
  for (const boost::json::value& found : all.at("best").as_array()) {
    const boost::json::object same = plan(by_hand(o, found));
    EXPECT_EQ(seconds(same), seconds(found));
    EXPECT_EQ(same.at("bubble_share"), found.at("bubble_share"));
    int64_t peak = 0;
    for (const boost::json::value& rank : same.at("ranks").as_array())
      peak = std::max(peak, rank.at("peak_bytes").as_int64());
    EXPECT_EQ(peak, found.at("peak_bytes").as_int64());
  }
}

// Where a rank has a little less than the smallest division takes that recomputes nothing, all that
// are found recompute, and fit.
TEST_F(PlanSearch, WhatDoesNotFitRecomputesOrIsLeftOut) {
  int64_t least = INT64_MAX;
  PlanOptions o = options(2);
  o.tokens = "8x512";
  o.recompute = "none";
  const boost::json::object keeping = plan(o);
  for (const boost::json::value& found : keeping.at("best").as_array())
    least = std::min(least, found.at("peak_bytes").as_int64());
  PlanOptions small = options(2, std::to_string(least - 1));
  small.tokens = o.tokens;
  const boost::json::object found = plan(small);
  ASSERT_FALSE(found.at("best").as_array().empty());
  for (const boost::json::value& one : found.at("best").as_array()) {
    EXPECT_EQ(one.at("recompute").as_string(), "full");
    EXPECT_LT(one.at("peak_bytes").as_int64(), least);
  }
  EXPECT_THAT(std::string(found.at("command").as_string()), HasSubstr(" --recompute full"));
  EXPECT_THAT(fault(options(2, "100000")),
              HasSubstr("no division among 2 ranks of " + small.cluster +
                        " fits: a rank has 97.7 KiB, and the smallest of "));
}

// Of a mixture of experts whose stages no rank has the memory for, ranks have parts of them.
TEST_F(PlanSearch, WhatStagesAreTooLargeForIsDividedFurther) {
  PlanOptions o = options(4);
  o.model = path_of("qwen3_moe");
  const boost::json::object roomy = plan(o);
  for (const boost::json::value& found : roomy.at("best").as_array()) {
    EXPECT_EQ(found.at("ranks").as_string().find("expert="), std::string::npos);
    EXPECT_EQ(found.at("ranks").as_string().find("tensor="), std::string::npos);
  }
  int64_t least = INT64_MAX;
  for (const char* ranks : {"pipeline=1,data=4", "pipeline=2,data=2"}) {
    boost::json::value one = division(ranks, "gpipe", 1, 1);
    one.as_object()["recompute"] = "full";
    const boost::json::object by_rank = plan(by_hand(o, one));
    for (const boost::json::value& rank : by_rank.at("ranks").as_array())
      least = std::min(least, rank.at("peak_bytes").as_int64());
  }
  bool any = false;
  for (int64_t memory = least - 1; memory > least / 2; memory -= least / 16) {
    PlanOptions less = options(4, std::to_string(memory));
    less.model = o.model;
    if (!fault(less).empty()) break;
    const boost::json::object found = plan(less);
    for (const boost::json::value& one : found.at("best").as_array()) {
      const std::string ranks(one.at("ranks").as_string());
      EXPECT_LE(one.at("peak_bytes").as_int64(), memory);
      any = any || ranks.find("expert=") != std::string::npos ||
            ranks.find("tensor=") != std::string::npos;
      const boost::json::object same = plan(by_hand(less, one));
      EXPECT_EQ(seconds(same), seconds(one)) << ranks;
    }
  }
  EXPECT_TRUE(any);
}

TEST_F(PlanSearch, PrintsTheCommandThatTrainsSo) {
  PlanOptions o = options(2);
  o.rank = 4;
  o.method = "full";
  const boost::json::object found = plan(o);
  const boost::json::value& best = found.at("best").as_array().front();
  const std::string command(found.at("command").as_string());
  EXPECT_THAT(command, HasSubstr("mpirun -n 2 strata train --model " + o.model));
  EXPECT_THAT(command, HasSubstr("--batch-size 8 "));
  for (const char* text : {" --method full", " --rank 4", " --micro-tokens 40", " --dtype bf16"})
    EXPECT_THAT(command, HasSubstr(text));
  EXPECT_THAT(command, HasSubstr(" --ranks " + std::string(best.at("ranks").as_string())));
  const Words words = {"plan",      "train",     path_of("smollm3"),
                       "--tokens",  "8x40",      "--search",
                       "2",         "--cluster", o.cluster,
                       "--threads", "1",         "--dtype",
                       "bf16",      "--method",  "full",
                       "--rank",    "4",         "--micro-tokens",
                       "40"};
  const Ran ran = run_program(words);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("micro-batches"));
  EXPECT_THAT(ran.out, HasSubstr(" divisions simulated; 0 too large for a rank; "));
  EXPECT_THAT(ran.out, HasSubstr("\nmpirun -n 2 strata train --model "));
  EXPECT_THAT(ran.err, HasSubstr("search"));
}

TEST_F(PlanSearch, RefusesWhatItChoosesAndWhatItDoesNotKnow) {
  const auto fault_with = [&](auto change) {
    PlanOptions o = options(2);
    change(o);
    return fault(o);
  };
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.cluster.clear(); }),
              HasSubstr("--search: of a cluster; give --cluster FILE"));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.stages.ranks = "data=2"; }),
              HasSubstr("--search and --ranks: "));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.memory = "1GiB"; }),
              HasSubstr("--search and --memory: "));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.schedule.microbatches = 1; }),
              HasSubstr("--search and --microbatches: give one; --search chooses how"));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.schedule.chunks = 2; }),
              HasSubstr("--search and --chunks: "));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.stages.schedule = "1f1b"; }),
              HasSubstr("--search and --pipeline-schedule: "));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.stages.shard_weights = true; }),
              HasSubstr("--search and --shard-weights: "));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.schedule.trace = "t.json"; }),
              HasSubstr("--search and --trace: "));
  EXPECT_THAT(fault_with([](PlanOptions& o) { o.tokens = "1x1000000"; }), HasSubstr("--tokens"));
}

}  // namespace
}  // namespace strata::apps
