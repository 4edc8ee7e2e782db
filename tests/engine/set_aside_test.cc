// SPDX-License-Identifier: Apache-2.0
// Rows that are set aside and run on later, and passes that are broken into: no bit moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "engine/sampling/sampling_loop.h"
#include "tests/engine/runner_house.h"

namespace strata::engine {
namespace {

struct Draw {
  uint32_t state = 1;
  int64_t operator()(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int64_t>(state >> 8) % below;
  }
};

api::SampleRequest request(const Engine& engine, int64_t prompt, int64_t max_tokens) {
  api::SampleRequest out;
  out.prompt = tiny_tokens(prompt, engine.config().vocab_size, 5);
  out.max_tokens = max_tokens;
  out.temperature = 0.9f;
  out.top_k = 30;
  out.top_p = 0.95f;
  out.scaled_logprobs = true;
  out.prompt_logprobs = true;
  out.topk_prompt_logprobs = 2;
  out.topk_sample_logprobs = 2;
  return out;
}

// Steps the loop to its end; before each step some rows are set aside, some give up what they
// kept, and some run on.
struct Disturbed {
  SamplingLoop& loop;
  std::vector<size_t> rows;
  Draw draw;
  std::vector<bool> aside = std::vector<bool>(rows.size());
  std::vector<bool> ended = std::vector<bool>(rows.size());
  int64_t times_aside = 0, times_kept = 0;

  void disturb() {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (ended[i] || draw(3) > 0) continue;
      if (aside[i]) {
        if (draw(4) == 0) loop.give_up_pages(rows[i]);
        loop.resume(rows[i]);
      } else {
        ++times_aside;
        times_kept += loop.preempt_row(rows[i], draw(2) == 0) ? 1 : 0;
      }
      aside[i] = !aside[i];
    }
  }
  void run() {
    while (std::count(ended.begin(), ended.end(), false) > 0) {
      disturb();
      for (const SampledToken& token : loop.step()) {
        if (!token.last) continue;
        const auto at = std::find(rows.begin(), rows.end(), token.id);
        ended[static_cast<size_t>(at - rows.begin())] = true;
      }
    }
  }
};

// Several rows of a prompt and a row alone, over pages, states and windows.
TEST(SetAside, RowsThatRunOnHaveTheBitsOfRowsThatNeverPaused) {
  for (const char* name : {"qwen3", "qwen3_5", "mistral_window", "deepseek_mla", "lfm2"}) {
    for (const int64_t page : {1, 7, 64}) {
      for (const int64_t prompt : {1, 9, 70}) {
        SCOPED_TRACE(std::string(name) + " " + std::to_string(page) + " " + std::to_string(prompt));
        auto engine =
            tiny_engine({.model = name, .options = {.prefill_tokens = 16, .page_size = page}});
        api::SampleRequest asked = request(*engine, prompt, 9);
        asked.presence_penalty = 0.5f;  // of tokens that a row may have to read again
        asked.repetition_penalty = 1.5f;
        api::SampleRequest sole = request(*engine, prompt + 2, 7);
        sole.stop = tiny_tokens(6, engine->config().vocab_size, 9);
        SamplingLoop loop(*engine);
        const size_t group = loop.open_group(asked, nullptr, /*owner=*/1);
        std::vector<size_t> rows;
        for (uint64_t seed = 0; seed < 3; ++seed) rows.push_back(loop.add_row(group, seed));
        loop.close_group(group);
        const size_t alone = loop.open_group(sole, nullptr, /*owner=*/2);
        rows.push_back(loop.add_row(alone, 3));
        loop.close_group(alone);
        Disturbed disturbed{loop, rows, {static_cast<uint32_t>(page * 100 + prompt)}};
        disturbed.run();
        EXPECT_GT(disturbed.times_aside, 3);
        for (uint64_t seed = 0; seed < rows.size(); ++seed) {
          api::SampleRequest one = seed < 3 ? asked : sole;
          one.seed = seed;
          expect_same(loop.take_result(rows[seed]), sample(*engine, {one})[0],
                      seed == 0 || seed == 3);
        }
        EXPECT_EQ(engine->kv_pool().num_free(), engine->kv_pool().num_pages());
        EXPECT_EQ(engine->state_pool().num_free(), engine->state_pool().num_slabs());
      }
    }
  }
}

// The row that reads the prompt for others never keeps it from them.
TEST(SetAside, OthersReadThePromptOfARowThatIsAside) {
  auto engine = tiny_engine({.options = {.prefill_tokens = 4, .page_size = 4}});
  const api::SampleRequest asked = request(*engine, 21, 4);
  SamplingLoop loop(*engine);
  const size_t group = loop.open_group(asked, nullptr);
  const size_t first = loop.add_row(group, 0);
  loop.step();
  EXPECT_FALSE(loop.preempt_row(first, true));  // more rows may come
  const size_t second = loop.add_row(group, 1);
  loop.close_group(group);
  while (!loop.done()) loop.step();
  loop.resume(first);
  while (!loop.done()) loop.step();
  api::SampleRequest one = asked;
  one.seed = 1;
  expect_same(loop.take_result(second), sample(*engine, {one})[0], false);
  one.seed = 0;
  expect_same(loop.take_result(first), sample(*engine, {one})[0], true);
}

std::string text_of(const api::Outcome& outcome) {
  if (const auto* failure = std::get_if<api::Failure>(&outcome)) return failure->message;
  std::string text;
  const auto& output = std::get<api::SampleOutput>(outcome);
  const auto add = [&text](const auto& values) {
    text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    text += '|';
  };
  for (const api::SampledSequence& sequence : output.sequences) {
    add(sequence.tokens);
    add(sequence.logprobs);
    add(sequence.topk.ids);
    text += sequence.stopped ? 's' : 'l';
  }
  add(output.prompt_logprobs);
  return text;
}

api::Command sample_of(const Engine& engine, const std::string& tenant, const std::string& id,
                       int64_t prompt, int64_t max_tokens, int64_t num_samples) {
  api::Command command = sample(engine, id, prompt, static_cast<uint64_t>(prompt), num_samples);
  command.tenant = {tenant};
  auto& op = std::get<api::Sample>(command.op);
  op.max_tokens = max_tokens;
  op.prompt_logprobs = num_samples % 2 == 1;
  op.topk_sample_logprobs = 1;
  if (num_samples == 2) op.stop_texts = {"a", "e "};
  return command;
}

// One tenant's long samples hold every row and every page: another one's short sample is done long
// before they are, and they lose nothing by it.
TEST(SetAside, AShortSampleIsNotHeldUpByAnotherTenantsLongOnes) {
  for (const bool by_pages : {true, false}) {
    RunnerOptions options;
    if (!by_pages) options.max_sample_rows = 2;
    EngineOptions engine_options{.page_size = 4};
    if (by_pages) engine_options.max_pages = 40;
    Server server({.options = engine_options}, {}, options);
    Server calm;
    std::map<std::string, std::string> want;
    for (int i = 0; i < 6; ++i) {
      const std::string id = "long-" + std::to_string(i);
      const auto make = [&] { return sample_of(*calm.engine, "hog", id, 5 + i, 60, 1); };
      want[id] = text_of(calm.ask(make()));
      server.submit(make());
    }
    for (int i = 0; i < 20; ++i) server.turn();
    const auto shorter = [&] { return sample_of(*calm.engine, "other", "short", 6, 3, 1); };
    want["short"] = text_of(calm.ask(shorter()));
    server.submit(shorter());
    int turns = 0;
    while (server.posted["short"].empty() && turns < 100) {
      server.turn();
      ++turns;
    }
    EXPECT_LE(turns, 5) << by_pages;
    server.run();
    for (const auto& [id, text] : want) {
      ASSERT_EQ(server.posted[id].size(), 1u) << id;
      EXPECT_TRUE(text_of(server.posted[id][0]) == text) << id;
    }
  }
}

// Whoever gives samples up frees all they hold, also of those that are aside.
TEST(SetAside, ARowThatIsAsideIsCancelled) {
  Server server({.options = {.page_size = 4}}, {}, {.max_sample_rows = 2});
  const std::vector<std::string> given_up = {"long-0", "long-1"};
  for (const std::string& id : given_up)
    server.submit(sample_of(*server.engine, "hog", id, 5, 60, 1));
  for (int i = 0; i < 20; ++i) server.turn();
  server.submit(sample_of(*server.engine, "other", "third", 6, 60, 1));
  const auto num_aside = [&] {
    int64_t count = 0;
    for (const api::SampleShare& share : server.runner.capacity().shares)
      count += share.preempted_rows;
    return count;
  };
  for (int i = 0; i < 5; ++i) server.turn();
  ASSERT_EQ(num_aside(), 1);
  for (const std::string& id : given_up) EXPECT_TRUE(server.scheduler.cancel({id}, "given up"));
  server.turn();
  EXPECT_EQ(num_aside(), 0);
  EXPECT_EQ(server.runner.capacity().running_samples, 1);
  server.run();
  for (const std::string& id : given_up) {
    ASSERT_EQ(server.posted[id].size(), 1u) << id;
    EXPECT_EQ(std::get<api::Failure>(server.posted[id][0]).message, "given up");
  }
  EXPECT_TRUE(std::holds_alternative<api::SampleOutput>(server.posted["third"].at(0)));
}

// Tenants that keep coming, with requests up to what the whole pool holds: each is answered once,
// as it would be alone, and nothing is held in the end.
TEST(SetAside, ACrowdOnFewPagesGetsWhatEachWouldAlone) {
  for (const char* model : {"qwen3", "qwen3_5"}) {
    Server calm({.model = model});
    std::map<std::string, std::string> want;
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(std::string(model) + " seed " + std::to_string(seed));
      const bool has_states = std::string(model) == "qwen3_5";
      Server server({.model = model,
                     .options = {.prefill_tokens = 8 + seed % 3 * 20,
                                 .page_size = 4,
                                 .max_pages = 24,
                                 .max_states = has_states ? 4 : 0}},
                    {}, {.max_sample_rows = 2 + static_cast<int64_t>(seed % 4)});
      Draw draw{seed};
      std::deque<api::Command> coming;
      for (int i = 0; i < 30; ++i) {
        const int64_t prompt = 1 + draw(draw(3) == 0 ? 40 : 9);
        const int64_t samples = 1 + draw(3);
        const int64_t tokens = 1 + draw(std::min<int64_t>(24 * 4 - 4 - prompt, draw(2) ? 9 : 60));
        std::string id =
            std::to_string(prompt) + "-" + std::to_string(samples) + "-" + std::to_string(tokens);
        if (want.find(id) == want.end())
          want[id] = text_of(calm.ask(sample_of(*calm.engine, "t", id, prompt, tokens, samples)));
        const std::string tenant = "tenant " + std::to_string(draw(4));
        coming.push_back(
            sample_of(*calm.engine, tenant, id + "/" + std::to_string(i), prompt, tokens, samples));
      }
      int64_t turns = 0;
      while ((!coming.empty() || !server.scheduler.idle()) && ++turns < 20000) {
        if (!coming.empty() && draw(3) == 0) {
          server.submit(std::move(coming.front()));
          coming.pop_front();
        }
        server.turn();
      }
      ASSERT_TRUE(server.scheduler.idle()) << "somebody waits for ever";
      server.run();
      for (const auto& [id, outcomes] : server.posted) {
        ASSERT_EQ(outcomes.size(), 1u) << id;
        const std::string got = text_of(outcomes[0]);
        EXPECT_TRUE(got == want[id.substr(0, id.find('/'))]) << id << " " << got.substr(0, 80);
      }
    }
  }
}

// Sampling breaks in on a training pass wherever the team allows it: the pass and the samples have
// the bits that they have alone, and each takes the scratch that was booked for it.
TEST(SetAside, APassThatIsBrokenIntoHasTheSameBits) {
  for (const char* name : {"qwen3", "qwen3_5_moe", "deepseek_moe"}) {
    for (const model::Recompute& recompute : {model::Recompute::kNone, model::Recompute::kFull}) {
      SCOPED_TRACE(name);
      std::vector<float> gradients[2];
      std::vector<float> logprobs[2];
      std::vector<api::SampleResult> samples[2];
      int64_t num_breaks = 0;
      for (const bool is_broken : {false, true}) {
        auto engine =
            tiny_engine({.model = name, .threads = 2, .options = {.recompute = recompute}});
        const api::AdapterSlot slot = engine->create_adapter(
            model::make_adapter_specs(engine->config(), {"all-linear"}, 4, 8.0), 3);
        stir(*engine, slot);
        api::Batch batch;
        batch.gradients = api::Gradients::kAdapters;
        for (uint32_t i = 0; i < 3; ++i)
          batch.sequences.push_back(tiny_sequence(*engine, 30 + 20 * i, i, slot));
        api::SampleRequest asked = request(*engine, 300, 40);
        PassWorkspace room(engine->workspace(), engine->config());
        Runner runner(*engine);
        SamplingLoop loop(runner, room);
        const size_t row = loop.add(asked);
        const auto is_due = [&] { return !loop.done(); };
        const auto run = [&] {
          loop.step();
          ++num_breaks;
        };
        const Interruption breaks{.is_due = is_due, .run = run};
        std::optional<Backend::Breaks> guard;
        if (is_broken) guard.emplace(engine->backend(), breaks);
        const int64_t grown = engine->backend().scratch().grown();  // while the model was loaded
        const api::BatchResult result = run_batch(*engine, batch);
        guard.reset();
        EXPECT_EQ(engine->backend().scratch().grown(), grown);
        EXPECT_EQ(room.backend().scratch().grown(), 0);
        EXPECT_EQ(engine->backend().scratch().high_water(), engine->last_plan().bytes);
        while (!loop.done()) loop.step();
        samples[is_broken ? 1 : 0] = {loop.take_result(row)};
        gradients[is_broken ? 1 : 0] = copy_of(engine->adapter(slot).gradients());
        for (const api::SequenceResult& sequence : result.sequences) {
          logprobs[is_broken ? 1 : 0].insert(logprobs[is_broken ? 1 : 0].end(),
                                             sequence.logprobs.begin(), sequence.logprobs.end());
        }
      }
      EXPECT_GE(num_breaks, 40);
      EXPECT_EQ(gradients[0], gradients[1]);
      EXPECT_EQ(logprobs[0], logprobs[1]);
      expect_same(samples[1][0], samples[0][0], true);
    }
  }
}

// Through the server's own turns: samples are answered while the pass of their turn still runs.
TEST(SetAside, SamplesAreAnsweredInsideAPass) {
  Server server({.threads = 2});
  Server calm({.threads = 2});
  for (Server* each : {&server, &calm}) {
    each->ask(create("m", {.rank = 4, .seed = 1}));
    each->submit(command("m", 1, data(*each->engine, {60, 50, 40}, 2)));
  }
  const auto short_sample = [&] { return sample_of(*calm.engine, "other", "s", 6, 3, 1); };
  const std::string want = text_of(Server({.threads = 2}).ask(short_sample()));
  bool is_sent = false;
  const auto is_due = [&] { return !is_sent || server.posted["s"].empty(); };
  const auto run = [&] {
    if (!is_sent) server.submit(short_sample());
    is_sent = true;
    const api::Work work = server.scheduler.next_samples(server.runner.capacity());
    for (api::Result& result : server.scheduler.complete(server.runner.sample(work), 0.0))
      server.posted[result.request.text].push_back(std::move(result.outcome));
  };
  const Interruption breaks{.is_due = is_due, .run = run};
  const api::Capacity capacity = server.runner.capacity();
  const api::Work work = server.scheduler.next({&capacity, 1}, 0.0);
  ASSERT_EQ(work.rows.size(), 1u);
  std::vector<api::Result> results = server.runner.run(work, &breaks);
  ASSERT_EQ(server.posted["s"].size(), 1u);  // before the pass's own result
  EXPECT_TRUE(text_of(server.posted["s"][0]) == want);
  for (api::Result& result : server.scheduler.complete(std::move(results), 0.0))
    server.posted[result.request.text].push_back(std::move(result.outcome));
  server.run();
  calm.run();
  const auto loss = [](Server& each) {
    return std::get<api::ForwardBackwardResult>(each.posted["m-1"].at(0)).metrics.at("loss:sum");
  };
  EXPECT_EQ(loss(server), loss(calm));
}

}  // namespace
}  // namespace strata::engine
