// SPDX-License-Identifier: Apache-2.0
// Losses of pairs through the whole engine: values and gradients of the adapter against their
// definitions in double over the logprobs that a plain scoring pass returns, and the same bits
// however pairs lie in passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/pipeline/round.h"
#include "ops/elementwise.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using api::LossName;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kBeta = 0.125f, kSmoothing = 0.25f;

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

struct PairReference {
  LossName name;
  bool per_target;
  double (*of_gap)(double x, double beta);
};

const PairReference kReferences[] = {
    {LossName::kDpoSigmoid, false, [](double g, double b) { return -log_sigmoid(b * g); }},
    {LossName::kDpoSigmoidNorm, true, [](double g, double b) { return -log_sigmoid(b * g); }},
    {LossName::kDpoRobust, false,
     [](double g, double b) {
       return (-0.75 * log_sigmoid(b * g) + 0.25 * log_sigmoid(-b * g)) / 0.5;
     }},
    {LossName::kDpoHinge, false, [](double g, double b) { return std::max(0.0, 1 - b * g); }},
    {LossName::kDpoIpo, true, [](double g, double b) { return (g - 0.5 / b) * (g - 0.5 / b); }},
};

// Over the targets that count, by a plain scoring pass; and how many these are.
struct Sum {
  double logprob = 0.0, count = 0.0;
};
Sum sum_of(Engine& engine, api::Sequence side) {
  side.loss = {};
  api::Batch batch;
  batch.sequences = {side};
  const api::BatchResult result = run_batch(engine, batch);
  const std::vector<float>& weights = side.datum->inputs[api::LossInput::kWeights];
  Sum sum;
  for (size_t t = 0; t < weights.size(); ++t) {
    if (weights[t] == 0.0f) continue;
    sum.logprob += static_cast<double>(result.sequences[0].logprobs[t]);
    sum.count += 1.0;
  }
  return sum;
}

// Two answers of which `scale` is each trained target's weight, and whose gap to the reference is
// 1 and 2.
std::vector<api::Sequence> tiny_pair(Engine& engine, LossName name, uint32_t seed,
                                     api::AdapterSlot slot, float scale) {
  std::vector<api::Sequence> pair;
  for (const int64_t count : {23, 17}) {
    api::Sequence side = tiny_sequence(engine, count, seed, slot);
    for (float& weight : weights_of(edit(side))) weight = weight == 0.0f ? 0.0f : scale;
    side.reference =
        static_cast<float>(sum_of(engine, side).logprob) - (pair.empty() ? 1.0f : 2.0f);
    side.loss = {.name = name, .options = {kBeta, kSmoothing}};
    pair.push_back(side);
  }
  return pair;
}

// Of the pair by logprobs that no loss of pairs has made.
double expected(Engine& engine, const PairReference& reference,
                const std::vector<api::Sequence>& pair) {
  double gaps[2] = {};
  for (size_t side = 0; side < 2; ++side) {
    const Sum sum = sum_of(engine, pair[side]);
    gaps[side] = sum.logprob - static_cast<double>(pair[side].reference);
    if (reference.per_target) gaps[side] /= sum.count;
  }
  return reference.of_gap(gaps[0] - gaps[1], static_cast<double>(kBeta));
}

// Derivative of f() along one weight of the adapter.
template <typename Loss>
double slope_of(Engine& engine, api::AdapterSlot slot, int64_t index, Loss f) {
  constexpr float kStep = 2e-3f;  // the error of f32 logprobs is about 1e-6 a token
  model::LoraAdapter& adapter = engine.adapter(slot);
  const TensorView weight = adapter.parameters().part(index, {1});
  const auto value_at = [&](float value) {
    ops::from_host(engine.backend(), {&value, 1}, weight);
    adapter.refresh(engine.backend());
    return f();
  };
  const float before = copy_of(weight)[0];
  const double above = value_at(before + kStep), below = value_at(before - kStep);
  value_at(before);
  return (above - below) / (2.0 * static_cast<double>(kStep));
}

TEST(EnginePairs, ValuesAndGradientsMatchTheDefinitions) {
  for (const PairReference& reference : kReferences) {
    auto engine = tiny_engine({.dtype = DType::kF32});
    const auto slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
    stir(*engine, slot);
    const auto pair = tiny_pair(*engine, reference.name, 5, slot, 0.5f);
    api::Batch batch;
    batch.gradients = api::Gradients::kAdapters;
    batch.sequences = pair;
    const api::BatchResult result = run_batch(*engine, batch);
    const double want = 0.5 * expected(*engine, reference, pair);
    EXPECT_NEAR(result.loss_sum, want, 1e-4 * std::max(1.0, std::fabs(want)));
    const std::vector<float> gradients = copy_of(engine->adapter(slot).gradients());
    double largest = 0.0;
    for (const float value : gradients)
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
    EXPECT_GT(largest, 0.01);
    for (int64_t k = 0; k < 20; ++k) {
      const int64_t index = k * 7919 % std::ssize(gradients);
      const double slope =
          slope_of(*engine, slot, index, [&] { return 0.5 * expected(*engine, reference, pair); });
      EXPECT_NEAR(gradients[static_cast<size_t>(index)], slope, 0.02 * largest + 2e-3)
          << static_cast<int>(reference.name) << " " << index;
    }
  }
}

struct Bits {
  std::vector<std::vector<float>> losses, logprobs;
  std::vector<float> gradients;
  int64_t num_passes = 0;
};

// With passes of so many tokens at most, all pairs in a batch or each in its own.
Bits bits_of(DType dtype, LossName name, int64_t pass_tokens, bool alone) {
  auto engine = tiny_engine({.dtype = dtype, .options = {.pass_tokens = pass_tokens}});
  const auto slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
  stir(*engine, slot);
  Bits bits;
  api::Batch batch;
  batch.gradients = api::Gradients::kAdapters;
  const auto run = [&] {
    const api::BatchResult result = run_batch(*engine, batch);
    for (const api::SequenceResult& sequence : result.sequences) {
      bits.losses.push_back(sequence.losses);
      bits.logprobs.push_back(sequence.logprobs);
    }
    bits.num_passes += result.num_passes;
    batch.sequences.clear();
  };
  for (const uint32_t seed : {3u, 4u, 5u}) {
    const auto pair = tiny_pair(*engine, name, seed, slot, 0.25f);
    batch.sequences.insert(batch.sequences.end(), pair.begin(), pair.end());
    if (alone) run();
  }
  if (!alone) run();
  bits.gradients = copy_of(engine->adapter(slot).gradients());
  return bits;
}

TEST(EnginePairs, PassesChangeNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const PairReference& reference : kReferences) {
      const Bits packed = bits_of(dtype, reference.name, 2048, /*alone=*/false);
      EXPECT_EQ(packed.num_passes, 1);
      // 30 and 20 tokens would cut a pair of 40 in two.
      for (const int64_t pass_tokens : {90, 30, 20}) {
        const Bits cut = bits_of(dtype, reference.name, pass_tokens, /*alone=*/false);
        EXPECT_EQ(cut.num_passes, pass_tokens == 90 ? 2 : 3);
        EXPECT_EQ(cut.losses, packed.losses);
        EXPECT_EQ(cut.logprobs, packed.logprobs);
        EXPECT_EQ(cut.gradients, packed.gradients);
      }
      const Bits alone = bits_of(dtype, reference.name, 2048, /*alone=*/true);
      EXPECT_EQ(alone.losses, packed.losses);
      EXPECT_EQ(alone.gradients, packed.gradients);
    }
  }
}

// Wherever a number of micro-batches, or the ranks that deal them out, would cut.
TEST(EnginePairs, RoundsLeavePairsWhole) {
  std::vector<api::Datum> data;
  for (const size_t length : {4, 4, 4, 4, 9, 4, 2, 2})
    data.push_back({.tokens = std::vector<int32_t>(length)});
  api::Batch batch;
  for (const api::Datum& datum : data)
    batch.sequences.push_back({.datum = &datum, .loss = {.name = LossName::kDpoSigmoid}});
  const auto firsts_of = [&](int num_microbatches, int num_dealt, int64_t pass_tokens) {
    PipelinePlan plan = make_whole_plan(1);
    plan.table.num_microbatches = num_microbatches;
    Round round;
    round.num_dealt = num_dealt;
    std::vector<size_t> firsts;
    while (next_round(plan, pass_tokens, batch, round))
      firsts.insert(firsts.end(), round.firsts.begin(), round.firsts.end());
    return firsts;
  };
  EXPECT_THAT(firsts_of(3, 1, 1), ElementsAre(0, 2, 6, 8));
  EXPECT_THAT(firsts_of(8, 1, 1), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(firsts_of(1, 2, 10), ElementsAre(0, 2, 4, 4, 6, 8));
}

TEST(EnginePairs, WhatIsNoPairIsRefused) {
  auto engine = tiny_engine({.dtype = DType::kF32});
  const auto fault_of = [&](std::vector<api::Sequence> sequences) -> std::string {
    api::Batch batch;
    batch.sequences = std::move(sequences);
    try {
      run_batch(*engine, batch);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto pair = tiny_pair(*engine, LossName::kDpoSigmoid, 3, api::AdapterSlot::kBase, 1.0f);
  EXPECT_EQ(fault_of(pair), "");
  EXPECT_THAT(fault_of({pair[0]}), HasSubstr("sequences[0].loss: dpo_sigmoid is of pairs"));
  std::vector<api::Sequence> others = pair;
  others[1].loss.options[0] = 1.0f;
  EXPECT_THAT(fault_of(others), HasSubstr("is not the rejected answer"));
  std::vector<api::Sequence> masked = pair;
  for (float& weight : weights_of(edit(masked[1]))) weight = 0.0f;
  EXPECT_THAT(fault_of(masked), HasSubstr("sequences[0].weights: all are 0"));
}

}  // namespace
}  // namespace strata::engine
