// SPDX-License-Identifier: Apache-2.0
// The text that Prometheus reads: one family after its HELP and TYPE, buckets that add up, and
// nothing that names a tenant, a run or a session.
#include "server/tinker/view/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "server/tinker/view/watch.h"

namespace strata::server {
namespace {

const Usage kNothing({}, {}, {});

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Histogram, BucketsAreCumulativeAndTheLastIsEverything) {
  Histogram histogram;
  for (const double seconds : {0.0005, 0.001, 0.004, 7.0, 1000.0}) histogram.add(seconds);
  std::string text;
  histogram.append_to(text, "h", "a=\"b\"");
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"0.001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"0.005\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"2.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"10\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"120\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"+Inf\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("h_count{a=\"b\"} 5\n"));
  histogram.append_to(text = "", "h", "");
  EXPECT_THAT(text, HasSubstr("h_bucket{le=\"0.001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nh_count 5\n"));
}

TEST(Metrics, EveryLineBelongsToTheFamilyAboveItAndEveryFamilyStandsOnce) {
  Metrics metrics;
  metrics.record_exchange("/api/v1/asample", 200, 0.01);
  metrics.record_exchange("/api/v1/asample", 429, 0.0);
  metrics.record_exchange("other", 404, 0.0);
  metrics.record_command("sample", "ok", 0.3);
  const std::string text =
      metrics.render_prometheus({.trained_tokens = 7,
                                 .drafts_read = 5,
                                 .drafts_accepted = 3,
                                 .prompt_tokens = 9,
                                 .cached_tokens = 4,
                                 .weights = 1'000'000'000'000},
                                {.budget = {{.name = "queue", .limit = 30, .held = 20}}}, kNothing);
  std::istringstream lines(text);
  std::set<std::string> families;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second, name;
    words >> first >> second >> name;
    if (first == "#") {
      family = name;
      if (second == "HELP") {
        EXPECT_TRUE(families.insert(name).second) << name;
      }
      continue;
    }
    EXPECT_EQ(line.rfind(family, 0), 0u) << line;
    EXPECT_FALSE(second.empty()) << line;
  }
  EXPECT_GE(families.size(), 14u);
  EXPECT_THAT(text, HasSubstr("strata_tokens_total{kind=\"train\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("strata_drafts_total{outcome=\"accepted\"} 3\n"
                              "strata_drafts_total{outcome=\"rejected\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("strata_prompt_tokens_total{kind=\"cached\"} 4\n"
                              "strata_prompt_tokens_total{kind=\"read\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("strata_memory_bytes{use=\"weights\"} 1000000000000\n"));
  EXPECT_THAT(text, HasSubstr("strata_memory_bytes{use=\"queue\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("strata_memory_plan_bytes{use=\"queue\"} 30\n"));
  EXPECT_THAT(
      text, HasSubstr("strata_http_requests_total{route=\"/api/v1/asample\",status=\"429\"} 1\n"));
}

TEST(Watch, MeasuresRatesAndCurvesAndNamesNobodyInTheMetrics) {
  Watch watch;
  watch.note_run_started("secretrun:train:0",
                         {.tenant = "secrettenant", .base_name = "m", .rank = 8, .begin = 1.0});
  api::Command pass;
  pass.model = {"secretrun:train:0"};
  api::Datum datum = {.tokens = {1, 2}};
  datum.inputs[api::LossInput::kWeights] = {1.0f, 3.0f};
  pass.op = api::ForwardBackward{.data = {datum}};
  api::ForwardBackwardResult result;
  result.metrics["loss:sum"] = 8.0;
  watch.record_outcome(watched_command(pass, 1.0), {"r1"}, result, 2.0);
  api::Command step;
  step.model = pass.model;
  step.op = api::OptimStep{};
  watch.record_outcome(watched_command(step, 2.0), {"r2"},
                       api::StepResult{.stepped = true, .step = 1}, 2.5);
  const WatchedRun& run = watch.runs().at("secretrun:train:0");
  ASSERT_EQ(run.curve.points().size(), 1u);
  EXPECT_DOUBLE_EQ(run.curve.points()[0].loss, 2.0);
  EXPECT_EQ(run.steps, 1);

  for (int second = 0; second <= 20; ++second) {
    watch.record_stats({.trained_tokens = 100 * second, .sampled_tokens = 10 * second}, second);
  }
  EXPECT_DOUBLE_EQ(watch.rate().train, 100.0);
  EXPECT_DOUBLE_EQ(watch.rate().sample, 10.0);
  const std::string text = watch.metrics().render_prometheus({}, {}, kNothing);
  EXPECT_THAT(text, HasSubstr("operation=\"forward_backward\",outcome=\"ok\""));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST(Watch, MeasuresTheFirstTokenOfASampleAndTheGapsOfEachRow) {
  Watch watch;
  api::Command command;
  command.op = api::Sample{};
  WatchedCommand sample = watched_command(command, 10.0);
  watch.record_tokens(sample, /*row=*/1, /*count=*/1, 10.2);
  watch.record_tokens(sample, 0, 1, 10.3);  // the first of its row, not of the sample
  watch.record_tokens(sample, 1, 1, 10.24);
  const std::string text = watch.metrics().render_prometheus({}, {}, kNothing);
  EXPECT_THAT(text, HasSubstr("strata_time_to_first_token_seconds_bucket{le=\"0.1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("strata_time_to_first_token_seconds_bucket{le=\"0.25\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("strata_time_to_first_token_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("strata_inter_token_latency_seconds_bucket{le=\"0.025\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("strata_inter_token_latency_seconds_bucket{le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("strata_inter_token_latency_seconds_count 1\n"));
}

TEST(Watch, ForwardAloneIsAnEvaluationAndEndedRunsAreBounded) {
  Watch watch;
  for (int i = 0; i < 200; ++i) {
    const std::string id = "run" + std::to_string(1000 + i);
    watch.note_run_started(id, {.tenant = "t"});
    watch.note_run_ended(id);
  }
  EXPECT_EQ(watch.runs().size(), 64u);
  EXPECT_TRUE(watch.runs().contains("run1199"));
  api::Command pass;
  pass.op = api::ForwardBackward{.data = {{.tokens = {1}}}, .forward_only = true};
  EXPECT_STREQ(watched_command(pass, 0.0).operation, "forward");
  watch.note_run_started("live", {.tenant = "t"});
  pass.model = {"live"};
  watch.record_outcome(watched_command(pass, 0.0), {},
                       api::ForwardBackwardResult{.metrics = {{"loss:sum", 2.5}}}, 1.0);
  const WatchedRun& run = watch.runs().at("live");
  ASSERT_EQ(run.evaluations.points().size(), 1u);
  EXPECT_DOUBLE_EQ(run.evaluations.points()[0].loss, 2.5);
  EXPECT_TRUE(run.curve.points().empty());
}

}  // namespace
}  // namespace strata::server
