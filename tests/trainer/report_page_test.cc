// SPDX-License-Identifier: Apache-2.0
// The page of --report: whole HTML whatever stands in texts, small however long the run.
#include "trainer/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

namespace strata::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<report::MetricsRecord> records_of(int steps) {
  std::vector<report::MetricsRecord> records;
  for (int step = 1; step <= steps; ++step) {
    records.push_back({.step = step,
                       .numbers = {{"loss", 4.0 / step + step % 7 * 0.01},
                                   {"lr", 1e-4},
                                   {"grad_norm", 1.0 + step % 3},
                                   {"tokens", 100},
                                   {"trained_tokens", 50},
                                   {"tokens_per_s", 200.0},
                                   {"reward", 0.5},
                                   {"rewards/margins", 0.1 * (step % 5)},
                                   {"rewards/accuracies", 0.5},
                                   {"eval_loss", 3.0 / step},
                                   {"eval_reward", 0.25},
                                   {"eval_rewards/margins", 0.1 * (step % 4)},
                                   {"eval_rewards/accuracies", 0.5}}});
  }
  return records;
}

// Every element that begins ends, in order; the names of all of them.
std::set<std::string> parse_elements(const std::string& html) {
  std::set<std::string> names;
  std::vector<std::string> open;
  for (size_t begin = html.find('<'); begin != std::string::npos; begin = html.find('<', begin)) {
    const size_t end = html.find('>', begin);
    const std::string tag = html.substr(begin + 1, end - begin - 1);
    begin = end;
    const bool is_end = tag.starts_with('/');
    const std::string name = tag.substr(is_end, tag.find_first_of(" \n/", 1) - is_end);
    names.insert(name);
    if (name == "!doctype" || name == "meta" || tag.ends_with('/')) continue;
    if (!is_end) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      ADD_FAILURE() << "</" << name << "> ends " << (open.empty() ? "nothing" : open.back());
      return names;
    } else {
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
  return names;
}

TEST(ReportPage, HasCurvesSamplesCostsAndCommands) {
  const RunReport run = {.title = "adapter",
                         .verdict = "the training loss rose",
                         .outcome = {{"steps", "30 of 30"}},
                         .costs = {{"memory", "64 MiB at the peak"}},
                         .settings = {{"lr", "0.001"}},
                         .commands = {{"Try it:", "strata chat --model m --adapter a"}},
                         .samples = {{"What does a cow say?", 0, 30, "I", "moo"}}};
  const std::string page = report_page(run, records_of(30));
  EXPECT_EQ(parse_elements(page).count("svg"), 1u);
  for (const char* text : {"the training loss rose", "30 of 30", "64 MiB at the peak", "0.001",
                           "strata chat --model m --adapter a", "What does a cow say?", ">moo<",
                           ">step 30<", ">margin<", ">accuracy<", ">reward<", ">learning rate<",
                           ">speed<", "in all steps", "200 tokens/s", "prefers-color-scheme: dark"})
    EXPECT_THAT(page, HasSubstr(text));
}

TEST(ReportPage, LoadsNothingAndEscapesTexts) {
  const std::string hostile =
      "</script></td><script>alert(1)</script><img src=x onerror=y>\x01\xff&";
  const RunReport run = {.title = hostile,
                         .verdict = hostile,
                         .outcome = {{hostile, hostile}},
                         .settings = {{hostile, hostile}},
                         .commands = {{hostile, hostile}},
                         .samples = {{hostile, 0, 1, hostile, hostile}}};
  const std::string page = report_page(run, records_of(3));
  const std::set<std::string> names = parse_elements(page);
  for (const char* name : {"script", "img", "link", "iframe"}) EXPECT_FALSE(names.contains(name));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;/td&gt;&lt;script&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  // The namespace of SVG is a name, which nobody loads.
  const size_t address = page.find("http://");
  EXPECT_EQ(page.substr(address, 26), "http://www.w3.org/2000/svg");
  EXPECT_EQ(page.find("http://", address + 1), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

TEST(ReportPage, IsAtMostTwoMegabytes) {
  const std::string quotes(20'000, '"');
  RunReport run = {.title = "long", .samples = std::vector<ReportSample>(500)};
  for (ReportSample& sample : run.samples) sample = {quotes, 0, 1, quotes, quotes};
  for (int i = 0; i < 500; ++i) {
    for (RunReport::Rows* rows : {&run.outcome, &run.costs, &run.settings})
      rows->push_back({"name", quotes});
  }
  const std::string page = report_page(run, records_of(100'000));
  EXPECT_LT(page.size(), 2'000'000u);
  parse_elements(page);
  EXPECT_THAT(page, HasSubstr("(20000 bytes in all)"));
  EXPECT_THAT(page, HasSubstr("476 more are in samples.jsonl"));
  EXPECT_THAT(page, HasSubstr("and 460 more"));
}

TEST(ReportPage, ReadsTheFirstAnswerAndTheLast) {
  const std::string path = ::testing::TempDir() + "strata_report_samples.jsonl";
  std::ofstream(path) << R"({"step":0,"prompt":"a","text":"x"}
{"step":0,"prompt":"b","text":"y\n</script>"}
{"step":5,"prompt":"a","text":"x5"}
{"step":5,"prompt":"b","text":"y5"}
{"step":9,"prompt":"b","text":"y9"}
)";
  const std::vector<ReportSample> samples = read_samples(path);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].prompt, "a");
  EXPECT_EQ(samples[0].last, "x5");
  EXPECT_EQ(samples[1].first, "y\n</script>");
  EXPECT_EQ(samples[1].first_step, 0);
  EXPECT_EQ(samples[1].last_step, 9);
  EXPECT_EQ(samples[1].last, "y9");
  EXPECT_TRUE(read_samples(path + ".none").empty());
}

}  // namespace
}  // namespace strata::apps
