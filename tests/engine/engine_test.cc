// SPDX-License-Identifier: Apache-2.0
// The engine on tiny models of tests/golden: equalities of bits between ways of running the same
// work, and isolation of adapters. Values are checked against transformers and PEFT in
// tests/golden.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using api::AdapterSlot;
using api::Gradients;
using testing::HasSubstr;

// A batch of two adapters and the base, uneven lengths.
api::Batch mixed_batch(const Engine& engine, AdapterSlot a, AdapterSlot b) {
  api::Batch batch;
  batch.gradients = Gradients::kAdapters;
  batch.sequences = {tiny_sequence(engine, 33, 1, a),
                     tiny_sequence(engine, 7, 2, AdapterSlot::kBase),
                     tiny_sequence(engine, 1, 3, b), tiny_sequence(engine, 70, 4, b),
                     tiny_sequence(engine, 9, 5, a)};
  return batch;
}

struct Trained {
  std::vector<float> logprobs, grads_a, grads_b;
  friend bool operator==(const Trained&, const Trained&) = default;
};

Trained run_mixed(const TinyEngine& setup) {
  auto engine = tiny_engine(setup);
  const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 3), 7);
  const AdapterSlot b = engine->create_adapter(tiny_specs(*engine, 8), 8);
  stir(*engine, a);
  stir(*engine, b);
  const api::BatchResult result = run_batch(*engine, mixed_batch(*engine, a, b));
  Trained out;
  for (const auto& s : result.sequences)
    out.logprobs.insert(out.logprobs.end(), s.logprobs.begin(), s.logprobs.end());
  out.grads_a = copy_of(engine->adapter(a).gradients());
  out.grads_b = copy_of(engine->adapter(b).gradients());
  return out;
}

TEST(Engine, PassesThreadsAndRecomputeDoNotChangeABit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const char* model : {"qwen3", "llama_tied_embed", "deepseek_mla", "deepseek_yarn",
                              "qwen3_moe", "deepseek_moe", "deepseek_v4", "gpt_oss", "gemma2",
                              "lfm2", "gemma4", "gemma4_moe", "gemma4_shared", "llama4"}) {
      TinyEngine setup = {.model = model, .dtype = dtype};
      const Trained whole = run_mixed(setup);
      EXPECT_NE(whole.grads_a, std::vector<float>(whole.grads_a.size(), 0.0f));
      setup.options.pass_tokens = 1;  // every sequence alone
      EXPECT_EQ(run_mixed(setup), whole);
      setup.options.pass_tokens = 41;
      EXPECT_EQ(run_mixed(setup), whole);
      setup.options = {};
      setup.options.recompute = model::Recompute::kFull;
      EXPECT_EQ(run_mixed(setup), whole);
      for (const int threads : {2, 7}) {
        setup.threads = threads;
        EXPECT_EQ(run_mixed(setup), whole);
      }
    }
  }
}

TEST(Engine, ParameterGradientsDoNotDependOnPasses) {
  // qwen3 is tied: the embedding's two uses are summed apart.
  for (const auto& [model, dtype] : {std::pair{"qwen3", DType::kF32},
                                     {"qwen3", DType::kBF16},
                                     {"deepseek_mla", DType::kF32},
                                     {"deepseek_mla", DType::kBF16},
                                     {"qwen3_moe_fused", DType::kBF16},
                                     {"gpt_oss", DType::kF32},
                                     {"lfm2", DType::kF32},
                                     {"deepseek_moe", DType::kF32}}) {
    std::vector<std::vector<float>> seen;
    for (const int64_t pass_tokens : {1, 1000}) {
      TinyEngine setup = {.model = model, .dtype = dtype};
      setup.options.pass_tokens = pass_tokens;
      auto engine = tiny_engine(setup);
      api::Batch batch;
      batch.gradients = Gradients::kParameters;
      batch.sequences = {tiny_sequence(*engine, 13, 1, AdapterSlot::kBase),
                         tiny_sequence(*engine, 6, 2, AdapterSlot::kBase)};
      run_batch(*engine, batch);
      engine->base_trainer().finish_gradients(engine->backend());
      std::vector<float> all;
      for (size_t i = 0; i < engine->model().weights->table().size(); ++i) {
        if (engine->model().weights->table()[i].buffer) continue;
        const auto part = copy_of(engine->base_trainer().gradient(i));
        all.insert(all.end(), part.begin(), part.end());
      }
      seen.push_back(all);
    }
    EXPECT_EQ(seen[0], seen[1]);
  }
}

// What another tenant does never reaches an adapter: gradients, weights and moments keep their
// bits.
TEST(Engine, OneAdapterNeverMovesAnother) {
  auto engine = tiny_engine({});
  const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 4), 1);
  const AdapterSlot b = engine->create_adapter(tiny_specs(*engine, 4), 2);
  api::Batch batch;
  batch.gradients = Gradients::kAdapters;
  batch.sequences = {tiny_sequence(*engine, 20, 1, a)};
  engine->adapter(b).enable_training();
  const auto before = copy_of(engine->adapter(b).parameters());
  run_batch(*engine, batch);
  const api::StepResult done = take_step(*engine, a, {.lr = 0.1, .weight_decay = 0.5});
  EXPECT_TRUE(done.stepped);
  EXPECT_GT(done.grad_norm, 0.0);
  EXPECT_EQ(copy_of(engine->adapter(b).parameters()), before);
  EXPECT_EQ(copy_of(engine->adapter(b).first_moments()),
            std::vector<float>(static_cast<size_t>(engine->adapter(b).num_parameters()), 0.0f));
}

TEST(Engine, AStepWithoutAGradientChangesNothing) {
  auto engine = tiny_engine({});
  const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 4), 1);
  const auto before = copy_of(engine->adapter(a).parameters());
  const api::StepResult done = take_step(*engine, a, {.lr = 0.1, .weight_decay = 0.5});
  EXPECT_FALSE(done.stepped);
  EXPECT_EQ(done.step, 0);
  EXPECT_EQ(copy_of(engine->adapter(a).parameters()), before);
}

// A slot that is cleared with gradients pending gives its next owner a fresh adapter.
TEST(Engine, AReusedSlotStartsFresh) {
  auto engine = tiny_engine({});
  const AdapterSlot first = engine->create_adapter(tiny_specs(*engine, 4), 5);
  const auto fresh = copy_of(engine->adapter(first).parameters());
  api::Batch batch;
  batch.gradients = Gradients::kAdapters;
  batch.sequences = {tiny_sequence(*engine, 20, 1, first)};
  run_batch(*engine, batch);
  take_step(*engine, first, {.lr = 0.1});
  run_batch(*engine, batch);
  engine->clear_adapter(first);
  EXPECT_THROW(static_cast<void>(engine->adapter(first)), Error);
  const AdapterSlot second = engine->create_adapter(tiny_specs(*engine, 4), 5);
  EXPECT_EQ(second, first);
  EXPECT_EQ(copy_of(engine->adapter(second).parameters()), fresh);
  EXPECT_FALSE(take_step(*engine, second, {.lr = 0.1}).stepped);
  batch.sequences[0].slot = second;
  run_batch(*engine, batch);
  EXPECT_TRUE(take_step(*engine, second, {.lr = 0.1}).stepped);
}

TEST(Engine, AFreshAdapterLeavesTheBasesBits) {
  auto engine = tiny_engine({});
  const AdapterSlot a = engine->create_adapter(
      model::make_adapter_specs(engine->config(), {"all-linear"}, 8, 16.0), 3);
  api::Batch batch;
  batch.sequences = {tiny_sequence(*engine, 40, 1, AdapterSlot::kBase),
                     tiny_sequence(*engine, 40, 1, a)};
  const api::BatchResult result = run_batch(*engine, batch);
  EXPECT_EQ(result.sequences[0].logprobs, result.sequences[1].logprobs);
}

api::SampleRequest request(const Engine& engine, int64_t prompt, uint32_t seed, AdapterSlot slot) {
  api::SampleRequest out;
  out.prompt = tiny_tokens(prompt, engine.config().vocab_size, seed);
  out.slot = slot;
  out.max_tokens = 9;
  out.temperature = 0.9f;
  out.top_p = 0.95f;
  out.seed = seed;
  out.prompt_logprobs = true;
  return out;
}

std::vector<api::SampleResult> sample_all(const TinyEngine& setup, bool alone) {
  auto engine = tiny_engine(setup);
  const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 3), 7);
  stir(*engine, a);
  const std::vector<api::SampleRequest> requests = {request(*engine, 70, 1, a),
                                                    request(*engine, 1, 2, AdapterSlot::kBase),
                                                    request(*engine, 13, 3, a)};
  if (!alone) return sample(*engine, requests);
  std::vector<api::SampleResult> out;
  for (const auto& r : requests) out.push_back(sample(*engine, {r})[0]);
  return out;
}

void expect_same(const std::vector<api::SampleResult>& got,
                 const std::vector<api::SampleResult>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    EXPECT_EQ(got[i].logprobs, want[i].logprobs);
    EXPECT_EQ(got[i].prompt_logprobs, want[i].prompt_logprobs);
  }
}

TEST(Engine, SamplingDoesNotDependOnCompanyPagesOrChunks) {
  for (const auto& [model, dtype] : {std::pair{"qwen3", DType::kF32},
                                     {"qwen3", DType::kBF16},
                                     {"deepseek_mla", DType::kF32},
                                     {"deepseek_mla", DType::kBF16},
                                     {"qwen3_moe_fused", DType::kBF16},
                                     {"deepseek_moe", DType::kF32}}) {
    TinyEngine setup = {.model = model, .dtype = dtype};
    const auto together = sample_all(setup, false);
    EXPECT_EQ(together[0].tokens.size(), 9u);
    expect_same(sample_all(setup, true), together);
    for (const int64_t page : {1, 3, 4096}) {
      setup.options.page_size = page;
      expect_same(sample_all(setup, false), together);
    }
    setup.options = {};
    for (const int64_t chunk : {1, 2, 17, 64}) {
      setup.options.prefill_tokens = chunk;
      expect_same(sample_all(setup, false), together);
    }
  }
}

// An on-policy importance ratio is exactly 1.
TEST(Engine, SampledLogprobsAreTheTrainersBits) {
  for (const auto& [model, dtype] : {std::pair{"qwen3", DType::kF32},
                                     {"qwen3", DType::kBF16},
                                     {"deepseek_yarn", DType::kF32},
                                     {"deepseek_yarn", DType::kBF16},
                                     {"qwen3_moe", DType::kBF16},
                                     {"deepseek_moe", DType::kF32}}) {
    auto engine = tiny_engine({.model = model, .dtype = dtype});
    const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 3), 7);
    stir(*engine, a);
    const api::SampleRequest asked = request(*engine, 21, 4, a);
    const api::SampleResult got = sample(*engine, {asked})[0];
    api::Datum scored;
    scored.tokens = asked.prompt;
    scored.tokens.insert(scored.tokens.end(), got.tokens.begin(), got.tokens.end() - 1);
    scored.targets.assign(scored.tokens.begin() + 1, scored.tokens.end());
    scored.targets.push_back(got.tokens.back());
    api::Batch batch;
    batch.sequences = {{.datum = &scored, .slot = a}};
    const std::vector<float> trained = run_batch(*engine, batch).sequences[0].logprobs;
    const size_t prompt = asked.prompt.size();
    for (size_t i = 0; i < got.logprobs.size(); ++i)
      EXPECT_EQ(got.logprobs[i], trained[prompt - 1 + i]);
    for (size_t i = 1; i < prompt; ++i) EXPECT_EQ(got.prompt_logprobs[i], trained[i - 1]);
    EXPECT_EQ(got.prompt_logprobs[0], 0.0f);
  }
}

// A sequence that takes no gradients is scored among others that do, and leaves none.
TEST(Engine, SequencesWithoutGradientsChangeNone) {
  auto engine = tiny_engine({});
  const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 3), 7);
  const AdapterSlot b = engine->create_adapter(tiny_specs(*engine, 8), 8);
  stir(*engine, a);
  stir(*engine, b);
  api::Batch all = mixed_batch(*engine, a, b);
  const api::BatchResult whole = run_batch(*engine, all);
  engine->adapter(a).drop_gradients();
  engine->adapter(b).drop_gradients();
  api::Batch own = all;
  std::erase_if(own.sequences, [&](const api::Sequence& s) { return s.slot == b; });
  run_batch(*engine, own);
  const std::vector<float> want = copy_of(engine->adapter(a).gradients());
  engine->adapter(a).drop_gradients();
  for (api::Sequence& s : all.sequences) s.gradients = s.slot != b;
  const api::BatchResult mixed = run_batch(*engine, all);
  for (size_t i = 0; i < all.sequences.size(); ++i)
    EXPECT_EQ(mixed.sequences[i].logprobs, whole.sequences[i].logprobs) << i;
  EXPECT_EQ(mixed.loss_sum, whole.loss_sum);
  EXPECT_EQ(copy_of(engine->adapter(a).gradients()), want);
  EXPECT_TRUE(engine->adapter(a).has_gradient);
  EXPECT_FALSE(engine->adapter(b).has_gradient);
}

TEST(Engine, HostileRequestsNameTheFieldAndRunNothing) {
  auto engine = tiny_engine({});
  const AdapterSlot a = engine->create_adapter(tiny_specs(*engine, 2), 1);
  const auto message = [&](auto change) {
    api::Batch batch;
    batch.gradients = Gradients::kAdapters;
    batch.sequences = {tiny_sequence(*engine, 4, 1, a), tiny_sequence(*engine, 4, 2, a)};
    change(batch.sequences[1]);
    try {
      run_batch(*engine, batch);
    } catch (const Error& error) {
      EXPECT_FALSE(engine->adapter(a).has_gradient);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message([](auto& s) { edit(s).tokens[2] = -1; }),
              HasSubstr("sequences[1].tokens[2]"));
  EXPECT_THAT(message([](auto& s) { edit(s).targets[0] = 1 << 30; }),
              HasSubstr("sequences[1].targets[0]"));
  EXPECT_THAT(message([](auto& s) { weights_of(edit(s)).pop_back(); }), HasSubstr("weights"));
  EXPECT_THAT(message([](auto& s) { edit(s).tokens.clear(); }), HasSubstr("tokens"));
  EXPECT_THAT(message([](auto& s) { s.loss.name = api::LossName::kPpo; }), HasSubstr("logprobs"));
  EXPECT_THAT(message([](auto& s) { s.slot = AdapterSlot{9}; }), HasSubstr("adapter 9"));
}

}  // namespace
}  // namespace strata::engine
