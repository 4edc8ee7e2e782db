// SPDX-License-Identifier: Apache-2.0
// What is told of samples while they run is what their result holds at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/engine/runner_house.h"

namespace strata::engine {
namespace {

// The rows of a request, put together from what was told.
std::vector<api::SampledSequence> rows_told(const Server& server, const std::string& request,
                                            size_t num_rows) {
  std::vector<api::SampledSequence> rows(num_rows);
  std::vector<bool> ended(num_rows, false);
  for (const api::Event& event : server.told) {
    const auto* told = std::get_if<api::RowTokens>(&event.what);
    if (event.request.text != request || told == nullptr) continue;
    const auto i = static_cast<size_t>(told->row);
    api::SampledSequence& row = rows.at(i);
    EXPECT_FALSE(ended[i]);
    EXPECT_EQ(told->first, std::ssize(row.tokens));
    EXPECT_EQ(std::ssize(told->topk.ids), told->topk.k * std::ssize(told->tokens));
    row.tokens.insert(row.tokens.end(), told->tokens.begin(), told->tokens.end());
    row.logprobs.insert(row.logprobs.end(), told->logprobs.begin(), told->logprobs.end());
    const api::TopkTable& topk = told->topk;
    row.topk.ids.insert(row.topk.ids.end(), topk.ids.begin(), topk.ids.end());
    row.topk.logprobs.insert(row.topk.logprobs.end(), topk.logprobs.begin(), topk.logprobs.end());
    ended[i] = told->ended;
    row.stopped = told->stopped;
  }
  EXPECT_THAT(ended, testing::Each(true)) << request;
  return rows;
}

void expect_told(const Server& server, const std::string& request) {
  const auto& output = std::get<api::SampleOutput>(server.posted.at(request).at(0));
  const auto rows = rows_told(server, request, output.sequences.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].tokens, output.sequences[i].tokens) << request << " " << i;
    EXPECT_EQ(rows[i].logprobs, output.sequences[i].logprobs) << request << " " << i;
    EXPECT_EQ(rows[i].topk.ids, output.sequences[i].topk.ids) << request << " " << i;
    EXPECT_EQ(rows[i].topk.logprobs, output.sequences[i].topk.logprobs) << request << " " << i;
    EXPECT_EQ(rows[i].stopped, output.sequences[i].stopped) << request << " " << i;
  }
}

// Many rows on few pages: some are set aside and sampled on later.
TEST(Events, TellTheTokensOfTheResult) {
  Server server({.options = {.page_size = 4, .max_pages = 24}});
  for (int i = 0; i < 5; ++i) {
    api::Command asked = sample(*server.engine, "r" + std::to_string(i), 9, 5, 3);
    asked.tenant = {"tenant " + std::to_string(i % 2)};
    auto& ask = std::get<api::Sample>(asked.op);
    ask.streams_tokens = true;
    ask.topk_sample_logprobs = i;
    ask.max_tokens = 7 + i;
    server.submit(asked);
  }
  server.run();
  for (int i = 0; i < 5; ++i) expect_told(server, "r" + std::to_string(i));
}

TEST(Events, SayHowARowEnded) {
  Server server;
  api::Command asked = sample(*server.engine, "whole", 9, 5, 4);
  const auto whole = std::get<api::SampleOutput>(server.ask(asked));
  // Nobody asked, so they are counted alone, row by row.
  std::vector<int64_t> sampled(whole.sequences.size()), wanted;
  for (const api::Event& event : server.told) {
    const auto& tokens = std::get<api::Sampled>(event.what);
    sampled.at(static_cast<size_t>(tokens.row)) += tokens.count;
  }
  for (const api::SampledSequence& row : whole.sequences) wanted.push_back(std::ssize(row.tokens));
  EXPECT_EQ(sampled, wanted);
  server.told.clear();
  auto& ask = std::get<api::Sample>(asked.op);
  ask.streams_tokens = true;
  asked.request = {"stop id"};
  ask.stop = {whole.sequences[2].tokens[4]};
  server.ask(asked);
  expect_told(server, "stop id");
  asked.request = {"stop text"};
  ask.stop.clear();
  ask.stop_texts = {server.tokenizer.decode(std::span(whole.sequences[1].tokens).first(4))};
  server.ask(asked);
  expect_told(server, "stop text");
}

// With the first tokens of a sample, whoever's they are, and never again.
TEST(Events, TellThePromptOnce) {
  Server server;
  api::Command asked = sample(*server.engine, "r", 9, 5, 3);
  auto& ask = std::get<api::Sample>(asked.op);
  ask.streams_tokens = true;
  ask.prompt_logprobs = true;
  ask.topk_prompt_logprobs = 2;
  const auto output = std::get<api::SampleOutput>(server.ask(asked));
  ASSERT_EQ(output.prompt_logprobs.size(), ask.prompt.size());
  size_t count = 0;
  for (const api::Event& event : server.told) {
    const auto& told = std::get<api::RowTokens>(event.what);
    EXPECT_EQ(told.prompt_logprobs.empty(), count > 0);
    if (count++ > 0) continue;
    EXPECT_TRUE(std::isnan(told.prompt_logprobs[0]));
    EXPECT_TRUE(std::equal(told.prompt_logprobs.begin() + 1, told.prompt_logprobs.end(),
                           output.prompt_logprobs.begin() + 1));
    EXPECT_EQ(told.prompt_topk.ids, output.prompt_topk.ids);
    EXPECT_EQ(told.prompt_topk.logprobs, output.prompt_topk.logprobs);
  }
  EXPECT_GT(count, 3u);
}

TEST(Events, TellHowFarALongPassIs) {
  Server server({.options = {.pass_tokens = 64}});
  server.ask(create("m", {.rank = 4, .seed = 1}));
  server.ask(command("m", 1, data(*server.engine, {30, 30, 30, 30, 30}, 4)));
  double before = 0;
  for (const api::Event& event : server.told) {
    const auto& progress = std::get<api::Progress>(event.what);
    EXPECT_EQ(event.request.text, "m-1");
    EXPECT_EQ(progress.total, 5);
    EXPECT_GT(progress.done, before);
    before = progress.done;
  }
  EXPECT_GT(before, 0);
  EXPECT_LT(before, 5);  // the result says the rest
}

// A datum is one pass, whose layers count: forward once, backward twice.
TEST(Events, TellHowFarTheDatumUnderWayIs) {
  Server server({.options = {.pass_tokens = 64}}, {}, {}, /*num_stages=*/1);
  server.ask(create("m", {.rank = 4, .seed = 1}));
  for (const bool forward_only : {false, true}) {
    SCOPED_TRACE(forward_only);
    api::Command command =
        engine::command("m", forward_only ? 2 : 1, data(*server.engine, {60}, 4));
    std::get<api::ForwardBackward>(command.op).forward_only = forward_only;
    server.submit(std::move(command));
    const api::Capacity capacity = server.runner.capacity();
    const api::Work work = server.scheduler.next({&capacity, 1}, 0.0);
    std::set<double> shares;
    const auto is_due = [&] {
      server.runner.emit_progress();
      for (const api::Event& event : server.runner.take_events()) {
        const auto& progress = std::get<api::Progress>(event.what);
        EXPECT_EQ(progress.total, 1);
        EXPECT_GE(progress.done, shares.empty() ? 0.0 : *shares.rbegin());
        shares.insert(progress.done);
      }
      return false;
    };
    const auto run = [] {};
    const Interruption breaks{.is_due = is_due, .run = run};
    server.post(server.runner.run(work, &breaks));
    server.runner.emit_progress();
    EXPECT_TRUE(server.runner.take_events().empty());  // the result says the rest
    // Behind the last backward nothing may break in any more.
    const int64_t layers = server.stages->engine().model().weights->part().size();
    const auto total = static_cast<double>(3 * layers);
    EXPECT_EQ(*shares.begin(), 0.0);
    EXPECT_EQ(*shares.rbegin(), forward_only ? 1.0 : (total - 2.0) / total);
    EXPECT_EQ(std::ssize(shares), forward_only ? layers + 1 : 2 * layers);
  }
}

}  // namespace
}  // namespace strata::engine
