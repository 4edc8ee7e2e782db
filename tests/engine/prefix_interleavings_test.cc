// SPDX-License-Identifier: Apache-2.0
// Random interleavings of three tenants' samples with a cache of prefixes and without.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/engine/prefix_house.h"

namespace strata::engine {
namespace {

// What three tenants submit, turn by turn, drawn beforehand so that two servers get the same.
struct Step {
  std::vector<api::Command> commands = {};
  int64_t turns = 0;
  std::optional<size_t> cancel = {};  // a session
};

std::vector<Step> draw_steps(uint32_t seed, const Engine& engine, int64_t page) {
  Drawn draw{seed};
  std::vector<Step> steps;
  const int64_t vocab = engine.config().vocab_size;
  int64_t number = 0;
  std::vector<Tokens> stems;  // what prompts of all tenants begin with
  for (uint32_t i = 0; i < 3; ++i)
    stems.push_back(tiny_tokens(2 * page + draw(2 * page), vocab, i));
  for (int64_t s = 0; s < 12; ++s) {
    Step step{.turns = draw(12)};
    for (int64_t c = 1 + draw(3); c > 0; --c) {
      const int64_t tenant = draw(3);
      Tokens prompt = stems[static_cast<size_t>(draw(3))];
      const Tokens more = tiny_tokens(1 + draw(page), vocab, static_cast<uint32_t>(draw(4)));
      prompt.insert(prompt.end(), more.begin(), more.end());
      api::Command command =
          ask(std::to_string(number), "tenant " + std::to_string(tenant), prompt, 1 + draw(page),
              static_cast<uint64_t>(number), 1 + draw(3) / 2 * draw(3));
      ++number;
      command.session = {"session " + std::to_string(draw(4))};
      auto& sample = std::get<api::Sample>(command.op);
      if (draw(4) == 0) {
        sample.prompt_logprobs = true;
        sample.topk_prompt_logprobs = draw(3);
        sample.first_prompt_logprob = 1 + draw(std::ssize(prompt));
      }
      if (draw(8) == 0) sample.prompt_draws = 1 + draw(2);
      step.commands.push_back(std::move(command));
    }
    if (draw(4) == 0) step.cancel = static_cast<size_t>(draw(4));
    steps.push_back(std::move(step));
  }
  return steps;
}

struct Seen {
  int64_t found = 0;           // tokens
  int64_t preempted_rows = 0;  // in any turn
  int64_t cancelled = 0;       // requests
};

std::map<std::string, std::string> answers(Server& server, const std::vector<Step>& steps,
                                           Seen& seen) {
  for (const Step& step : steps) {
    for (const api::Command& command : step.commands) server.submit(command);
    for (int64_t i = 0; i < step.turns; ++i) {
      server.turn();
      for (const api::SampleShare& share : server.runner.capacity().shares)
        seen.preempted_rows += share.preempted_rows;
    }
    if (step.cancel)
      server.scheduler.end_session({"session " + std::to_string(*step.cancel)}, "ended", 0.0);
  }
  run_all(server);
  std::map<std::string, std::string> out;
  for (const auto& [request, outcomes] : server.posted) {
    EXPECT_EQ(outcomes.size(), 1u) << request;
    out[request] = bytes_of(outcomes[0]);
    if (const auto* output = std::get_if<api::SampleOutput>(&outcomes[0]))
      seen.found += output->cached_tokens;
    seen.cancelled += out[request] == "ended" ? 1 : 0;
  }
  EXPECT_EQ(server.runner.capacity().running_samples, 0);
  expect_nothing_held(server);
  return out;
}

class PrefixInterleavings : public testing::TestWithParam<Family> {};

// Rows that join, share, are set aside, are cancelled, all in a pool that holds a few of them.
// Which requests a session's end still reaches depends on how fast others went: only what both
// answered with samples is compared then.
TEST_P(PrefixInterleavings, NoAnswerOfAnyInterleavingDependsOnThem) {
  Seen seen, seen_without;
  int64_t compared = 0, needed = 0, held = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const EngineOptions options{
        .prefill_tokens = 16, .page_size = kPage, .max_pages = 10, .max_states = 5};
    Server with({.model = GetParam().model, .options = options}, {},
                {.max_sample_rows = 4, .prefix_cache = true});
    Server without({.model = GetParam().model, .options = options}, {}, {.max_sample_rows = 4});
    const std::vector<Step> steps =
        draw_steps(seed, *with.engine, with.engine->cache_layout().page_size());
    for (const Step& step : steps) {
      for (const api::Command& command : step.commands)
        needed += with.engine->kv_pool().need().of_largest(std::get<api::Sample>(command.op));
    }
    held += options.max_pages;
    const auto got = answers(with, steps, seen);
    const auto want = answers(without, steps, seen_without);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [request, bytes] : want) {
      if (bytes == "ended" || got.at(request) == "ended") continue;
      EXPECT_EQ(got.at(request), bytes) << request;
      ++compared;
    }
  }
  EXPECT_GE(needed, 10 * held);
  EXPECT_EQ(seen_without.found, 0);
  EXPECT_GT(seen.found, 100);
  EXPECT_GT(seen.preempted_rows, 0);
  EXPECT_GT(seen.cancelled, 0);
  EXPECT_GT(compared, 400);
  std::printf("%s: %ld answers, %ld tokens found, %ld rows aside, %ld cancelled\n",
              GetParam().model, static_cast<long>(compared), static_cast<long>(seen.found),
              static_cast<long>(seen.preempted_rows), static_cast<long>(seen.cancelled));
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixInterleavings, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.model); });

}  // namespace
}  // namespace strata::engine
