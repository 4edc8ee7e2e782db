// SPDX-License-Identifier: Apache-2.0
// strata plan train --cluster: a step of ranks on links, from a file, a config and a division.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/apps/plan_run.h"
#include "tests/apps/program.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

constexpr const char* kLimits = "flops = 2e9\nread_bytes_per_s = 1e9\nmemory = \"1GiB\"\n";

std::string cluster_text(double latency_s, double bytes_per_s) {
  return fmt::format("{}link_latency_s = {}\nlink_bytes_per_s = {}\n", kLimits, latency_s,
                     bytes_per_s);
}
const std::string kFreeLinks = cluster_text(0, 1e300);

class PlanCluster : public ::testing::Test {
 protected:
  [[nodiscard]] PlanOptions options(const std::string& content, const std::string& ranks,
                                    int microbatches = 0) const {
    PlanOptions o = options_of_plan("qwen3");
    o.tokens = "6x40";
    o.cluster = folder_.file("cluster.toml");
    write_file_atomic(o.cluster, content);
    o.stages.ranks = ranks;
    o.schedule.microbatches = microbatches;
    return o;
  }
  const TempDir folder_;
};

double seconds(const boost::json::object& planned) {
  return planned.at("seconds_per_step").as_double();
}
double field(const boost::json::value& rank, const char* name) {
  return rank.at(name).to_number<double>();
}

TEST_F(PlanCluster, BubblesAreWhatRanksDoNotCompute) {
  for (const char* ranks : {"pipeline=2", "pipeline=2,data=3", "data=3"}) {
    SCOPED_TRACE(ranks);
    const PlanOptions o = options(kFreeLinks, ranks, std::string(ranks) == "data=3" ? 0 : 2);
    const boost::json::object planned = plan(o);
    double busy = 0.0, most = 0.0;
    for (const boost::json::value& rank : planned.at("ranks").as_array()) {
      busy += field(rank, "compute_seconds");
      most = std::max(most, field(rank, "compute_seconds"));
      EXPECT_NEAR(field(rank, "transfer_seconds"), 0.0, 1e-250);
      EXPECT_EQ(rank.at("peak_bytes"), rank.at("planned_bytes"));
    }
    const auto all = static_cast<double>(planned.at("ranks").as_array().size());
    EXPECT_NEAR(planned.at("bubble_share").as_double(), 1 - busy / all / seconds(planned), 1e-12);
    EXPECT_GT(seconds(planned), most);
    EXPECT_TRUE(planned.at("fits").as_bool());
    EXPECT_EQ(plan(o), planned);
  }
}

// Two stages under 1f1b, of which the last one, with the head, is the larger. Behind its first
// forward it never waits, so that the first one's forward and backward of one micro-batch of six
// come on top of its own time.
TEST_F(PlanCluster, TheLargestStageSetsThePace) {
  PlanOptions o = options(kFreeLinks, "pipeline=2", 6);
  o.stages.schedule = "1f1b";
  const boost::json::object planned = plan(o);
  const boost::json::array& ranks = planned.at("ranks").as_array();
  const double first = field(ranks[0], "compute_seconds");
  const double last = field(ranks[1], "compute_seconds");
  ASSERT_GT(last, first);
  EXPECT_GT(seconds(planned), last + 0.9 * first / 6);
  EXPECT_LE(seconds(planned), last + first / 6 + 1e-12);
}

TEST_F(PlanCluster, TimesAreThoseOfTheFile) {
  const double slow = seconds(plan(options(kFreeLinks, "pipeline=2", 3)));
  std::string fast = kFreeLinks;
  fast.replace(fast.find("flops = 2e9"), 11, "flops = 4e9");
  fast.replace(fast.find("_s = 1e9"), 8, "_s = 2e9");
  EXPECT_NEAR(seconds(plan(options(fast, "pipeline=2", 3))), slow / 2, slow * 1e-12);
}

// Of one micro-batch: a state goes there, its gradient back, and then the sums of squares.
TEST_F(PlanCluster, LatenciesAreOfEveryMessageOnTheWay) {
  const double without = seconds(plan(options(kFreeLinks, "pipeline=2", 1)));
  const double late = seconds(plan(options(cluster_text(100, 1e300), "pipeline=2", 1)));
  EXPECT_NEAR(late - without, 3 * 100.0, without);
}

TEST_F(PlanCluster, LinksBetweenNodesAreReadForRanksOfTwoNodes) {
  const std::string nodes =
      "ranks_per_node = {}\nnode_link_latency_s = 100\n"
      "node_link_bytes_per_s = 1e300\n";
  const auto with_nodes = [&](int ranks_per_node) {
    return plan(options(kFreeLinks + fmt::format(fmt::runtime(nodes), ranks_per_node),
                        "pipeline=2,data=2", 1));
  };
  const boost::json::object one = with_nodes(4), two = with_nodes(2), each = with_nodes(1);
  EXPECT_EQ(seconds(one), seconds(plan(options(kFreeLinks, "pipeline=2,data=2", 1))));
  EXPECT_NEAR(seconds(two) - seconds(one), 3 * 100.0, seconds(one));
  EXPECT_GT(seconds(each), seconds(two) + 50.0);
}

// Over a link of a byte a second without latency a rank's messages are on their way for as many
// seconds as they have bytes: those that are planned for ranks that run.
TEST_F(PlanCluster, RanksSendWhatIsPlanned) {
  struct Case {
    std::string ranks;
    int microbatches;
    std::string method = "lora";
  };
  for (const Case& c : {Case{"pipeline=2", 3}, Case{"pipeline=2,data=2", 1},
                        Case{"pipeline=2,data=2", 3}, Case{"data=2", 0}, Case{"data=3", 0},
                        Case{"data=3", 0, "full"}, Case{"pipeline=2,data=2", 1, "full"}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", c.ranks, c.microbatches, c.method));
    PlanOptions o = options(cluster_text(0, 1), c.ranks, c.microbatches);
    o.method = c.method;
    o.micro_tokens = 120;  // as many passes for each rank
    double simulated = 0.0, planned = 0.0;
    const boost::json::object both = plan(o);
    for (const boost::json::value& rank : both.at("ranks").as_array()) {
      double bytes = 0.0;
      for (const auto& [kind, sent] : rank.at("planned_sent_bytes").as_object())
        bytes += sent.to_number<double>();
      if (c.method == "lora") {
        EXPECT_NEAR(field(rank, "transfer_seconds"), bytes, bytes * 1e-9) << rank.at("rank");
      }
      simulated += field(rank, "transfer_seconds");
      planned += bytes;
    }
    // Of all parameters each owner has an equal share here, and whole rows in truth; of the sums of
    // squares only those are sent among owners whose rows have several.
    EXPECT_NEAR(simulated, planned, planned * (c.method == "lora" ? 1e-9 : 0.05));
  }
}

// Ranks that have parts of a stage's weights: each has less to compute, all wait for every layer's
// messages, and the one that sends most is as long at that as its planned bytes take.
TEST_F(PlanCluster, RanksThatHavePartsOfAStageGoTogether) {
  struct Case {
    std::string model, ranks, one;  // without those parts
    double share;                   // of what is computed by each, at least
  };
  for (const Case& c :
       {Case{"llama2", "tensor=2", "data=1", 0.5},
        Case{"llama2", "pipeline=2,tensor=2", "pipeline=2", 0.5},
        Case{"qwen3_moe", "tensor=2", "data=1", 0.5}, Case{"qwen3_moe", "expert=2", "data=1", 0.5},
        Case{"qwen3_moe", "pipeline=2,expert=2", "pipeline=2", 0.5}}) {
    SCOPED_TRACE(c.model + " " + c.ranks);
    const auto planned = [&](const std::string& links, const std::string& ranks) {
      PlanOptions o = options(links, ranks, ranks.starts_with("pipeline") ? 1 : 0);
      o.model = path_of(c.model);
      return plan(o);
    };
    const auto busiest = [](const boost::json::object& plan) {
      double most = 0.0;
      for (const boost::json::value& rank : plan.at("ranks").as_array())
        most = std::max(most, field(rank, "compute_seconds"));
      return most;
    };
    const boost::json::object one = planned(kFreeLinks, c.one), free = planned(kFreeLinks, c.ranks);
    EXPECT_EQ(free.at("ranks").as_array().size(), 2 * one.at("ranks").as_array().size());
    EXPECT_GE(busiest(free), busiest(one) * c.share * 0.999);
    EXPECT_LT(busiest(free), busiest(one) * 0.8);
    EXPECT_GT(seconds(free), busiest(free));
    EXPECT_LT(seconds(free), seconds(one) * 1.2);
    const double late = (seconds(planned(cluster_text(100, 1e300), c.ranks)) - seconds(free)) / 100;
    EXPECT_GT(late, 2 * 3) << "layers, forward and backward";
    double most_planned = 0.0, most_sent = 0.0;
    const boost::json::object sent = planned(cluster_text(0, 1), c.ranks);
    for (const boost::json::value& rank : sent.at("ranks").as_array()) {
      double bytes = 0.0;
      for (const auto& [kind, of_kind] : rank.at("planned_sent_bytes").as_object())
        bytes += of_kind.to_number<double>();
      most_planned = std::max(most_planned, bytes);
      most_sent = std::max(most_sent, field(rank, "transfer_seconds"));
    }
    // Of rows for experts the most that there can be is planned; an even half is simulated.
    const bool divides_experts = c.ranks.find("expert") != std::string::npos;
    EXPECT_GT(most_sent, most_planned * (divides_experts ? 0.5 : 0.95));
    EXPECT_LT(most_sent, most_planned * (divides_experts ? 0.8 : 1.05));
  }
}

TEST_F(PlanCluster, SaysWhetherARankHasTheMemory) {
  std::string small = kFreeLinks;
  small.replace(small.find("\"1GiB\""), 6, "100000");
  PlanOptions o = options(small, "pipeline=2", 2);
  EXPECT_FALSE(plan(o).at("fits").as_bool());
  const std::vector<std::string> words = {
      "plan",       "train",     path_of("qwen3"), "--tokens",  "6x40", "--ranks",
      "pipeline=2", "--cluster", o.cluster,        "--threads", "1",    "--microbatches",
      "2"};
  const Ran ran = run_program(words);
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const char* text : {"ranks", "computes", "sends for", "of which a rank computes nothing",
                           "it does not fit: a rank has 97.7 KiB"})
    EXPECT_THAT(ran.out, HasSubstr(text));
}

TEST_F(PlanCluster, TheTimelineHasARowForEachRank) {
  PlanOptions o = options(cluster_text(1e-6, 1e9), "pipeline=2,data=2", 1);
  o.schedule.trace = folder_.file("trace.json");
  const boost::json::object planned = plan(o);
  const boost::json::value trace = boost::json::parse(read_file(o.schedule.trace, 1 << 20));
  int rows = 0, actions = 0, steps = 0;
  double end_us = 0.0;
  for (const boost::json::value& event : trace.at("traceEvents").as_array()) {
    const std::string name(event.at("name").as_string());
    if (name == "thread_name") ++rows;
    if (event.at("ph") != "X") continue;
    if (name == "optimizer step") ++steps;
    if (name.find_first_of("FB") == 1) ++actions;
    end_us = std::max(end_us, field(event, "ts") + field(event, "dur"));
  }
  EXPECT_EQ(rows, 4);
  EXPECT_EQ(actions, 8);  // two micro-batches, each through two stages and back
  EXPECT_EQ(steps, 4);
  EXPECT_NEAR(end_us * 1e-6, seconds(planned), 1e-8);
}

TEST_F(PlanCluster, TheFormWithoutAWordIsUnderstood) {
  const PlanOptions o = options(kFreeLinks, "pipeline=2", 2);
  const Words same = {"--cluster",         o.cluster,        "--tokens", "6x40",  "--ranks",
                      "pipeline=2,data=1", "--microbatches", "2",        "--json"};
  Words bare = {"plan", "--model", path_of("qwen3") + "/config.json", "--schedule", "1f1b"};
  Words typed = {
      "plan", "train", "--model", path_of("qwen3") + "/config.json", "--pipeline-schedule", "1f1b"};
  bare.insert(bare.end(), same.begin(), same.end());
  typed.insert(typed.end(), same.begin(), same.end());
  const Ran one = run_program(bare), other = run_program(typed);
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, other.out);
  EXPECT_THAT(one.out, HasSubstr("\"bubble_share\""));
}

TEST_F(PlanCluster, AFileThatWillNotDoIsRefusedByField) {
  const auto fault_of = [&](const std::string& text) { return fault(options(text, "data=2")); };
  const auto without = [](std::string text, const std::string& line) {
    const size_t begin = text.find(line);
    EXPECT_NE(begin, std::string::npos);
    return text.erase(begin, text.find('\n', begin) + 1 - begin);
  };
  for (const char* name :
       {"flops", "read_bytes_per_s", "memory", "link_latency_s", "link_bytes_per_s"}) {
    EXPECT_THAT(fault_of(without(kFreeLinks, name)),
                HasSubstr(fmt::format("cluster.toml: there is no {}", name)));
    for (const char* value : {"-1", "nan", "inf", "true", "\"fast\""}) {
      EXPECT_THAT(fault_of(without(kFreeLinks, name) + fmt::format("{} = {}\n", name, value)),
                  HasSubstr(fmt::format("{}: ", name)))
          << value;
    }
  }
  EXPECT_THAT(fault_of(without(kFreeLinks, "flops") + "flops = 0"),
              HasSubstr("flops: got 0, want a positive number"));
  EXPECT_THAT(fault_of(without(kFreeLinks, "memory") + "memory = \"lots\"\n"),
              HasSubstr("cluster.toml: memory: got lots, want bytes or a size like \"64GiB\""));
  EXPECT_THAT(fault_of(kFreeLinks + "speed = 1\n"),
              HasSubstr("unknown field 'speed', want of flops"));
  EXPECT_THAT(fault_of(kFreeLinks + "ranks_per_node = 2\n"),
              HasSubstr("there is no node_link_latency_s"));
  EXPECT_THAT(fault_of(kFreeLinks + "node_link_latency_s = 0\n"),
              HasSubstr("there is no ranks_per_node"));
  const std::string node = "node_link_latency_s = 0\nnode_link_bytes_per_s = 1\nranks_per_node = ";
  for (const char* value : {"0.5", "1.5", "1e9"})
    EXPECT_THAT(fault_of(kFreeLinks + node + value), HasSubstr("want a whole number from 1 to"));
}

TEST_F(PlanCluster, AFileThatIsNoTomlIsRefusedByLine) {
  const auto fault_of = [&](const std::string& text) { return fault(options(text, "data=2")); };
  EXPECT_THAT(fault_of("flops = \n"), HasSubstr("cluster.toml:1: "));
  EXPECT_THAT(fault_of(kFreeLinks + "flops = 1\n"), HasSubstr("cluster.toml:6: "));
  EXPECT_THAT(fault_of(kFreeLinks + "[links]\na = 1\n"),
              HasSubstr("cluster.toml:6: 'links': want a text, a number or true/false"));
  EXPECT_THAT(fault_of(kFreeLinks + "f32_flops = [1]\n"), HasSubstr("'f32_flops': want a text"));
  EXPECT_THAT(fault_of(std::string("\xff\xfe\0", 3)), HasSubstr("cluster.toml:"));
  PlanOptions o = options(kFreeLinks, "data=2");
  o.cluster += ".missing";
  EXPECT_THAT(fault(o), HasSubstr("No such file"));
}

TEST_F(PlanCluster, RefusesWhatItDoesNotSimulate) {
  EXPECT_THAT(fault(options(kFreeLinks, "")), HasSubstr("--cluster: of ranks; give --ranks"));
  EXPECT_THAT(fault(options(kFreeLinks, "expert=2")), HasSubstr("expert"));
  PlanOptions o = options(kFreeLinks, "data=2");
  o.machine = "machine.json";
  EXPECT_THAT(fault(o), HasSubstr("--cluster and --machine: give one"));
  o = options(kFreeLinks, "data=2");
  o.stages.shard_weights = true;
  EXPECT_THAT(fault(o), HasSubstr("--cluster and --shard-weights"));
  o = options(kFreeLinks, "pipeline=2", 2);
  o.stages.stages = 2;
  EXPECT_THAT(fault(o), HasSubstr("--cluster and --stages"));
  o = options_of_plan("qwen3");
  o.schedule.trace = folder_.file("trace.json");
  EXPECT_THAT(fault(o), HasSubstr("--trace: of a simulated step; give --cluster FILE"));
}

}  // namespace
}  // namespace strata::apps
