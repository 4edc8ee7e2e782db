// SPDX-License-Identifier: Apache-2.0
// Bias, penalties and min-p of samples: what is chosen is what the plain reference chooses from the
// logits that a training pass has, whatever else is in the batch.
#include "api/sampling_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "engine/sampling/sampling_loop.h"
#include "ops/cpu/sampler.h"
#include "ops/ref/choose_tokens.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

// Every option alone, and all at once, greedy and not.
std::vector<api::SampleRequest> requests(const Engine& engine) {
  std::vector<api::SampleRequest> out;
  for (const float temperature : {0.0f, 0.9f, 3.0f}) {
    for (int kind = 0; kind < 7; ++kind) {
      api::SampleRequest& request = out.emplace_back();
      request.prompt = tiny_tokens(3 + 5 * kind, engine.config().vocab_size, 7);
      request.max_tokens = 24;
      request.temperature = temperature;
      request.seed = static_cast<uint64_t>(kind);
      request.topk_sample_logprobs = 3;
      request.scaled_logprobs = kind % 2 == 0;
      const bool all = kind == 6;
      if (kind == 1 || all) request.presence_penalty = 1.5f;
      if (kind == 2 || all) request.frequency_penalty = -0.75f;
      if (kind == 3 || all) request.repetition_penalty = 1.3f;
      if (kind == 4 || all) request.min_p = 0.4f;
      if (kind == 5 || all) request.logit_bias = {{9, 2.5f}, {17, -100.0f}, {9, -1.0f}};
      if (all) request.top_k = 20;
    }
  }
  return out;
}

// The logits of a pass over prompt and answer, from the row of the first token of the answer on.
std::vector<float> logits_of(Engine& engine, const api::SampleRequest& request,
                             const api::SampleResult& result) {
  api::Datum datum = {.tokens = request.prompt};
  datum.tokens.insert(datum.tokens.end(), result.tokens.begin(), result.tokens.end());
  api::TensorSink sink;
  run_batch(engine, {.sequences = {{.datum = &datum}}, .want_loss = false, .want_logits = true},
            &sink);
  std::vector<float>& all = sink.at("logits").values;
  const int64_t skipped = (std::ssize(request.prompt) - 1) * engine.config().vocab_size;
  return {all.begin() + skipped, all.end()};
}

TEST(SamplingOptions, ChooseWhatTheReferenceChooses) {
  auto engine = tiny_engine({.dtype = DType::kF32});
  const auto vocab = static_cast<size_t>(engine->config().vocab_size);
  const auto asked = requests(*engine);
  const auto got = sample(*engine, asked);
  for (size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE(i);
    const api::SampleRequest& request = asked[i];
    const std::vector<float> logits = logits_of(*engine, request, got[i]);
    std::vector<ops::LogitChange> bias;
    for (const api::LogitBias& b : request.logit_bias) bias.push_back({b.token, b.add});
    const std::span<const int32_t> tokens(got[i].tokens);
    for (size_t t = 0; t < tokens.size(); ++t) {
      ops::TokenChoice choice;
      choice.changes = bias;
      choice.penalties = {.repetition = request.repetition_penalty,
                          .frequency = request.frequency_penalty,
                          .presence = request.presence_penalty};
      const std::vector<ops::TokenCount> answer = ops::counts_of(tokens.first(t));
      choice.before = {.prompt = request.prompt, .answer = answer};
      const std::span<const float> raw = std::span(logits).subspan(t * vocab, vocab);
      const std::vector<double> changed = ops::ref::changed_logits(raw, choice);
      const std::vector<float> rounded(changed.begin(), changed.end());
      EXPECT_EQ(tokens[t], ops::cpu::choose_token(rounded,
                                                  {.temperature = request.temperature,
                                                   .top_k = request.top_k,
                                                   .top_p = request.top_p,
                                                   .min_p = request.min_p,
                                                   .seed = request.seed},
                                                  t));
    }
  }
}

// Logprobs of the raw logits are those that a training pass has, to the bit, whatever was done to
// the logits for the choice.
TEST(SamplingOptions, LogprobsStayTheModels) {
  auto engine = tiny_engine({});
  auto asked = requests(*engine);
  for (api::SampleRequest& request : asked) request.scaled_logprobs = false;
  const auto got = sample(*engine, asked);
  for (size_t i = 0; i < asked.size(); ++i) {
    api::Datum datum = {.tokens = asked[i].prompt};
    datum.tokens.insert(datum.tokens.end(), got[i].tokens.begin(), got[i].tokens.end());
    datum.targets.assign(datum.tokens.begin() + 1, datum.tokens.end());
    datum.targets.push_back(0);
    const auto scored = run_batch(*engine, {.sequences = {{.datum = &datum}}}, nullptr);
    const std::vector<float>& all = scored.sequences[0].logprobs;
    const auto first = all.begin() + std::ssize(asked[i].prompt) - 1;
    EXPECT_EQ(got[i].logprobs, std::vector<float>(first, all.end() - 1)) << i;
  }
}

TEST(SamplingOptions, NoBitDependsOnTheBatch) {
  for (const char* name : {"qwen3", "qwen3_5"}) {
    auto engine = tiny_engine({.model = name, .threads = 3});
    auto other = tiny_engine({.model = name, .options = {.prefill_tokens = 6, .page_size = 4}});
    const auto asked = requests(*engine);
    const auto packed = sample(*engine, asked);
    for (size_t i = 0; i < asked.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same(sample(*other, {asked[i]})[0], packed[i]);
    }
  }
}

// Rows of one prompt count their own answers alone.
TEST(SamplingOptions, RowsOfOnePromptCountTheirOwn) {
  auto engine = tiny_engine({.options = {.prefill_tokens = 8, .page_size = 4}});
  const api::SampleRequest asked = requests(*engine).back();
  SamplingLoop loop(*engine);
  const size_t group = loop.open_group(asked, nullptr);
  std::vector<size_t> rows;
  for (uint64_t seed = 0; seed < 4; ++seed) rows.push_back(loop.add_row(group, seed));
  loop.close_group(group);
  while (!loop.done()) loop.step();
  for (uint64_t seed = 0; seed < rows.size(); ++seed) {
    api::SampleRequest one = asked;
    one.seed = seed;
    expect_same(loop.take_result(rows[seed]), sample(*engine, {one})[0], false);
  }
}

TEST(SamplingOptions, NeutralValuesMoveNoBit) {
  auto engine = tiny_engine({});
  for (api::SampleRequest plain : requests(*engine)) {
    const auto neutral_but = [&](float temperature) {
      for (const api::SamplingOption& option : api::kSamplingOptions)
        plain.*option.field = option.neutral;
      plain.temperature = temperature;
      plain.logit_bias.clear();
      return plain;
    };
    const api::SampleRequest want = neutral_but(plain.temperature);
    api::SampleRequest same = want;
    same.presence_penalty = -0.0f;
    same.frequency_penalty = -0.0f;
    expect_same(sample(*engine, {same})[0], sample(*engine, {want})[0]);
    same.logit_bias = {{4, 0.0f}};  // goes by a copy of the row
    expect_same(sample(*engine, {same})[0], sample(*engine, {want})[0]);
  }
}

TEST(SamplingOptions, OutOfRangeIsRefusedByName) {
  auto engine = tiny_engine({});
  const auto fault = [&](const auto& change) -> std::string {
    api::SampleRequest request = requests(*engine)[0];
    change(request);
    try {
      engine->check(request, 2);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const api::SamplingOption& option : api::kSamplingOptions) {
    const std::string name = "sample[2]." + std::string(option.name) + ": got ";
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const float wrong : {option.least - 0.5f, 2 * option.most + 1, nan}) {
      EXPECT_THAT(fault([&](auto& request) { request.*option.field = wrong; }),
                  testing::AllOf(testing::HasSubstr(name), testing::HasSubstr(option.wanted)));
    }
    EXPECT_EQ(fault([&](auto& request) { request.*option.field = option.neutral; }), "");
    EXPECT_EQ(fault([&](auto& request) { request.*option.field = option.most; }), "");
  }
  using Biases = std::vector<api::LogitBias>;
  const auto biased = [&](const Biases& biases) {
    return fault([&](auto& request) { request.logit_bias = biases; });
  };
  const auto vocab = static_cast<int32_t>(engine->config().vocab_size);
  EXPECT_EQ(biased(Biases(api::kMostLogitBiases, {vocab - 1, -100.0f})), "");
  EXPECT_EQ(biased(Biases(api::kMostLogitBiases + 1, {1, 1.0f})),
            "sample[2].logit_bias: got 1025 tokens, the limit is 1024");
  EXPECT_THAT(biased({{vocab, 1.0f}}), testing::HasSubstr("sample[2].logit_bias: got id"));
  EXPECT_THAT(biased({{-1, 1.0f}}), testing::HasSubstr("sample[2].logit_bias: got id -1"));
  EXPECT_EQ(biased({{3, 100.5f}}), "sample[2].logit_bias: got 100.5 for token 3, want -100 to 100");
}

}  // namespace
}  // namespace strata::engine
