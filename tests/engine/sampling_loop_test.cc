// SPDX-License-Identifier: Apache-2.0
// Rows that share a prompt, and the server's own rules of sampling.
#include "engine/sampling/sampling_loop.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

api::SampleRequest request(const Engine& engine, int64_t prompt, int64_t max_tokens) {
  api::SampleRequest out;
  out.prompt = tiny_tokens(prompt, engine.config().vocab_size, 5);
  out.max_tokens = max_tokens;
  out.scaled_logprobs = true;
  return out;
}

api::SampleResult alone(Engine& engine, api::SampleRequest asked, uint64_t seed) {
  asked.seed = seed;
  return sample(engine, {asked})[0];
}

// Whether rows share pages, copy the last one or join when the first row is long gone: the bits are
// those of a row alone, and every page comes back.
TEST(SamplingLoop, RowsOfOnePromptHaveTheBitsOfRowsAlone) {
  for (const int64_t page : {1, 3, 8, 64}) {
    for (const int64_t prompt : {1, 2, 8, 9, 17}) {
      auto engine = tiny_engine({.options = {.prefill_tokens = 5, .page_size = page}});
      const api::SampleRequest asked = request(*engine, prompt, 6);
      SamplingLoop loop(*engine);
      const size_t group = loop.open_group(asked, nullptr);
      std::vector<size_t> rows;
      for (uint64_t seed = 0; seed < 3; ++seed) rows.push_back(loop.add_row(group, seed));
      for (int i = 0; i < 2; ++i) loop.step();
      rows.push_back(loop.add_row(group, 3));
      while (!loop.done()) loop.step();
      rows.push_back(loop.add_row(group, 4));  // the row that read the prompt has ended
      loop.close_group(group);
      while (!loop.done()) loop.step();
      EXPECT_EQ(engine->kv_pool().num_free(), engine->kv_pool().num_pages());
      for (uint64_t seed = 0; seed < rows.size(); ++seed) {
        const api::SampleResult got = loop.take_result(rows[seed]);
        const api::SampleResult want = alone(*engine, asked, seed);
        EXPECT_EQ(got.tokens, want.tokens) << page << " " << prompt << " " << seed;
        EXPECT_EQ(got.logprobs, want.logprobs);
      }
    }
  }
}

// The row that reads the prompt is stopped before it is done: another one reads it.
TEST(SamplingLoop, AnotherRowReadsThePromptWhenTheFirstIsStopped) {
  auto engine = tiny_engine({.options = {.prefill_tokens = 4, .page_size = 4}});
  const api::SampleRequest asked = request(*engine, 21, 4);
  SamplingLoop loop(*engine);
  const size_t group = loop.open_group(asked, nullptr);
  const size_t first = loop.add_row(group, 0);
  const size_t second = loop.add_row(group, 1);
  loop.close_group(group);
  loop.step();
  loop.finish(first);
  loop.take_result(first);
  while (!loop.done()) loop.step();
  EXPECT_EQ(loop.take_result(second).tokens, alone(*engine, asked, 1).tokens);
  EXPECT_EQ(engine->kv_pool().num_free(), engine->kv_pool().num_pages());
}

// A prompt is read once: n rows of one token cost its tokens and one more for each further row.
TEST(SamplingLoop, SharedPromptsTakeTheirPagesOnce) {
  auto engine = tiny_engine({.options = {.page_size = 4}});
  SamplingLoop loop(*engine);
  const size_t group = loop.open_group(request(*engine, 41, 2), nullptr);
  for (uint64_t seed = 0; seed < 10; ++seed) loop.add_row(group, seed);
  loop.close_group(group);
  loop.step();
  loop.step();
  // 41 positions are 11 pages; each further row shares ten of them.
  EXPECT_LE(engine->kv_pool().num_pages() - engine->kv_pool().num_free(), 11 + 9);
  while (!loop.done()) loop.step();
}

// logprobs and top-k are of softmax(logits / temperature): against double, from the whole
// distribution at temperature 1.
TEST(SamplingLoop, ScaledLogprobsAreOfTheScaledDistribution) {
  auto engine = tiny_engine({});
  api::SampleRequest asked = request(*engine, 9, 1);
  const int64_t vocab = engine->config().vocab_size;
  asked.topk_sample_logprobs = vocab;
  const api::SampleResult plain = sample(*engine, {asked})[0];
  std::vector<double> logprobs(static_cast<size_t>(vocab));
  double total = 0.0;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    logprobs[static_cast<size_t>(plain.sample_topk_ids[i])] =
        static_cast<double>(plain.sample_topk_logprobs[i]);
    total += std::exp(static_cast<double>(plain.sample_topk_logprobs[i]));
  }
  EXPECT_NEAR(total, 1.0, 1e-5);
  for (const float temperature : {0.25f, 0.7f, 3.0f, 0.0f}) {
    asked.temperature = temperature;
    const double t = temperature == 0.0f ? 1.0 : static_cast<double>(temperature);
    double sum = 0.0;
    for (const double lp : logprobs) sum += std::exp(lp / t);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      asked.seed = seed;
      const api::SampleResult got = sample(*engine, {asked})[0];
      const double want = logprobs[static_cast<size_t>(got.tokens[0])] / t - std::log(sum);
      EXPECT_NEAR(got.logprobs[0], want, 1e-5 * (1.0 + std::fabs(want) / t));
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(got.sample_topk_logprobs[i],
                    logprobs[static_cast<size_t>(got.sample_topk_ids[i])] / t - std::log(sum),
                    1e-4);
      }
    }
  }
  // probe's own rule stays: raw logits whatever the temperature.
  asked.temperature = 3.0f;
  asked.scaled_logprobs = false;
  const api::SampleResult raw = sample(*engine, {asked})[0];
  EXPECT_NEAR(raw.logprobs[0], logprobs[static_cast<size_t>(raw.tokens[0])], 1e-5);
}

// Divided by a tiny temperature logits are infinite: that is this row's fault and nobody else's.
TEST(SamplingLoop, ATinyTemperatureTouchesNoOtherRow) {
  auto engine = tiny_engine({});
  api::SampleRequest honest = request(*engine, 9, 1);
  const std::vector<int32_t> want = alone(*engine, honest, 1).tokens;
  for (const int64_t k : {0, 1, 5}) {
    api::SampleRequest tiny = request(*engine, 9, 1);
    tiny.temperature = 1e-44f;
    tiny.topk_sample_logprobs = k;
    SamplingLoop loop(*engine);
    const size_t good = loop.add_row(loop.open_group(honest, nullptr), 1);
    const size_t bad = loop.add_row(loop.open_group(tiny, nullptr), 1);
    while (!loop.done()) loop.step();
    EXPECT_EQ(loop.take_result(good).tokens, want);
    EXPECT_THROW(loop.take_result(bad), Error) << k;
  }
}

TEST(SamplingLoop, PromptTargetsAreScored) {
  auto engine = tiny_engine({.options = {.prefill_tokens = 4}});
  api::SampleRequest asked = request(*engine, 11, 1);
  asked.prompt_logprobs = true;
  asked.prompt_targets.ids.assign(20, -1);
  for (int64_t row = 0; row <= 10; ++row) asked.prompt_targets.first.push_back(2 * row);
  for (size_t i = 0; i < 10; i += 3) asked.prompt_targets.ids[2 * i + 1] = asked.prompt[i + 1];
  const api::SampleResult got = sample(*engine, {asked})[0];
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(got.prompt_target_logprobs[2 * i], 0.0f);
    EXPECT_EQ(got.prompt_target_logprobs[2 * i + 1],
              i % 3 == 0 ? got.prompt_logprobs[i + 1] : 0.0f);
  }
  // A row of several ids and rows of none, without the prompt's own logprobs: the same values.
  api::SampleRequest sparse = asked;
  sparse.prompt_logprobs = false;
  sparse.topk_prompt_logprobs = 0;
  sparse.prompt_targets.ids = {asked.prompt[4], 3, asked.prompt[4]};
  sparse.prompt_targets.first = {0, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3};
  const api::SampleResult few = sample(*engine, {sparse})[0];
  EXPECT_TRUE(few.prompt_logprobs.empty());
  EXPECT_EQ(few.prompt_target_logprobs[0], got.prompt_logprobs[4]);
  EXPECT_EQ(few.prompt_target_logprobs[2], got.prompt_logprobs[4]);
  EXPECT_LT(few.prompt_target_logprobs[1], 0.0f);
  EXPECT_EQ(few.tokens, got.tokens);
  api::SampleRequest tail = asked;
  tail.prompt_targets = {};
  tail.first_prompt_logprob = 8;
  const api::SampleResult cut = sample(*engine, {tail})[0];
  for (size_t i = 0; i < 11; ++i)
    EXPECT_EQ(cut.prompt_logprobs[i], i < 8 ? 0.0f : got.prompt_logprobs[i]);
}

// Draws at the positions of a prompt: the same however it is read, greedy ones the argmax, and
// their logprobs the model's.
TEST(SamplingLoop, PromptsAreDrawnAtEveryPosition) {
  auto engine = tiny_engine({.options = {.prefill_tokens = 4}});
  api::SampleRequest asked = request(*engine, 11, 1);
  asked.prompt_draws = 3;
  asked.temperature = 0.7f;
  asked.seed = 9;
  const api::SampleResult got = sample(*engine, {asked})[0];
  ASSERT_EQ(got.prompt_draw_ids.size(), 30u);
  auto whole = tiny_engine({.options = {.prefill_tokens = 2048}});
  const api::SampleResult again = sample(*whole, {asked, asked})[1];
  EXPECT_EQ(again.prompt_draw_ids, got.prompt_draw_ids);
  EXPECT_EQ(again.prompt_draw_logprobs, got.prompt_draw_logprobs);
  api::SampleRequest scored = asked;
  scored.prompt_draws = 0;
  scored.prompt_targets.ids = got.prompt_draw_ids;
  for (int64_t row = 0; row <= 10; ++row) scored.prompt_targets.first.push_back(3 * row);
  EXPECT_EQ(sample(*engine, {scored})[0].prompt_target_logprobs, got.prompt_draw_logprobs);
  asked.seed = 10;
  EXPECT_NE(sample(*engine, {asked})[0].prompt_draw_ids, got.prompt_draw_ids);
  asked.temperature = 0.0f;
  asked.topk_prompt_logprobs = 1;
  const api::SampleResult greedy = sample(*engine, {asked})[0];
  for (size_t i = 0; i < 30; ++i)
    EXPECT_EQ(greedy.prompt_draw_ids[i], greedy.topk_ids[i / 3 + 1]) << i;
}

}  // namespace
}  // namespace strata::engine
