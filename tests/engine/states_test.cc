// SPDX-License-Identifier: Apache-2.0
// Models whose sequences have a state of their own: rows of one prompt begin from a copy of it at a
// page border, every slab goes back, and nothing about a sample changes.
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/sampling/sampling_loop.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

api::SampleRequest request(int64_t prompt, int64_t max_tokens) {
  api::SampleRequest out;
  out.prompt = tiny_tokens(prompt, 59, 4);
  out.max_tokens = max_tokens;
  out.temperature = 0.8f;
  out.seed = 5;
  return out;
}

struct Sampled {
  std::vector<api::SampleResult> rows;
  int64_t most_states = 0;
  int64_t num_steps = 0;
};

// Rows of one prompt, all with the request's seed.
Sampled sample(const std::string& name, const EngineOptions& options, int64_t prompt,
               int num_rows) {
  const auto engine = tiny_engine({.model = name, .threads = 2, .options = options});
  Sampled out;
  SamplingLoop loop(*engine);
  const api::SampleRequest asked = request(prompt, 70);
  const size_t group = loop.open_group(asked, nullptr);
  std::vector<size_t> ids;
  for (int i = 0; i < num_rows; ++i) ids.push_back(loop.add_row(group, asked.seed));
  loop.close_group(group);
  while (!loop.done()) {
    loop.step();
    ++out.num_steps;
    const SlabPool& states = engine->state_pool();
    out.most_states = std::max(out.most_states, states.num_slabs() - states.num_free());
  }
  for (const size_t id : ids) out.rows.push_back(loop.take_result(id));
  EXPECT_EQ(engine->kv_pool().num_pages(), engine->kv_pool().num_free());
  EXPECT_EQ(engine->state_pool().num_slabs(), engine->state_pool().num_free());
  return out;
}

// Prompts that end before, at and behind borders of chunks (64) and pages; decoding crosses one.
TEST(States, SharingAndPrefillMoveNoBit) {
  for (const char* name : {"qwen3_5", "qwen3_5_moe", "deepseek_v4", "deepseek_v4_odd",
                           "deepseek_v4_upstream", "lfm2"}) {
    for (const int64_t prompt : {1, 3, 63, 64, 65, 66, 130}) {
      const Sampled alone = sample(name, {}, prompt, 1);
      EXPECT_EQ(alone.most_states, 1);
      for (const int64_t page : {1, 7, 64}) {
        for (const int64_t chunk : {5, 64}) {
          const Sampled got = sample(name, {.prefill_tokens = chunk, .page_size = page}, prompt, 3);
          EXPECT_LE(got.most_states, 3 + 1) << prompt << " " << page;  // rows, and the prompt's
          for (const api::SampleResult& row : got.rows) {
            ASSERT_EQ(row.tokens, alone.rows[0].tokens) << name << prompt << " " << page << chunk;
            ASSERT_EQ(row.logprobs, alone.rows[0].logprobs) << name << prompt << " " << page;
          }
        }
      }
    }
  }
}

// A hundred tokens in passes of five: further rows read less than a page each.
TEST(States, APromptIsReadOnceUpToAPageBorder) {
  const EngineOptions options = {.prefill_tokens = 5, .page_size = 4};
  const int64_t alone = sample("qwen3_5", options, 100, 1).num_steps;
  EXPECT_LE(sample("qwen3_5", options, 100, 3).num_steps, alone + 4);
}

// What a sequence left in a slab is nothing to the next one that has it.
TEST(States, ASlabsPastDoesNotShow) {
  for (const char* name : {"qwen3_5", "deepseek_v4", "lfm2"}) {
    const auto engine = tiny_engine({.model = name, .options = {.max_states = 1}});
    const api::SampleRequest asked = request(70, 5);
    const api::SampleResult first = sample(*engine, {asked})[0];
    sample(*engine, {request(99, 9)});
    EXPECT_EQ(sample(*engine, {asked})[0].logprobs, first.logprobs) << name;
    EXPECT_EQ(engine->state_pool().num_slabs(), 1);
  }
}

// Another row takes the leader's place, from the prompt's start.
TEST(States, AnotherRowReadsThePromptWhenTheFirstIsStopped) {
  const auto engine =
      tiny_engine({.model = "qwen3_5", .options = {.prefill_tokens = 16, .page_size = 8}});
  const api::SampleRequest asked = request(70, 6);
  const api::SampleResult want = sample(*engine, {asked})[0];
  for (int steps = 0; steps < 6; ++steps) {
    SamplingLoop loop(*engine);
    const size_t group = loop.open_group(asked, nullptr);
    const size_t first = loop.add_row(group, asked.seed);
    const size_t second = loop.add_row(group, asked.seed);
    loop.close_group(group);
    for (int i = 0; i < steps; ++i) loop.step();
    loop.finish(first);
    static_cast<void>(loop.take_result(first));
    while (!loop.done()) loop.step();
    EXPECT_EQ(loop.take_result(second).logprobs, want.logprobs) << steps;
  }
  EXPECT_EQ(engine->state_pool().num_slabs(), engine->state_pool().num_free());
}

TEST(States, BeyondTheLimitIsAnError) {
  const auto engine = tiny_engine({.model = "qwen3_5", .options = {.max_states = 2}});
  try {
    sample(*engine, {request(5, 3), request(6, 3), request(7, 3)});
    FAIL() << "three states where two may be";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
    EXPECT_STREQ(error.what(), "states of sequences: all 2 are in use");
  }
  EXPECT_EQ(engine->state_pool().num_slabs(), engine->state_pool().num_free());
  EXPECT_EQ(sample(*engine, {request(5, 3), request(6, 3)}).size(), 2u);
}

}  // namespace
}  // namespace strata::engine
