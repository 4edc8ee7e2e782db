// SPDX-License-Identifier: Apache-2.0
// Losses through the whole engine, f32: values and gradients of the adapter against formulas in
// double over the logprobs that a plain scoring pass returns, and central differences of the
// engine's own loss by adapter weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using api::LossName;

// Where formulas differ from one another, written from the table of the protocol: p is the
// logprob, f the one that stopgrad sees, q the sampler's.
struct Token {
  double p, f, q, a;
  double sequence_ratio;  // exp of the mean of f - q over the mask
  bool masked;
};
struct Reference {
  LossName name;
  std::vector<float> options;
  double (*of_token)(const Token& t);
};

double clip(double ratio, double low, double high) { return std::clamp(ratio, low, high); }

const Reference kReferences[] = {
    {LossName::kCrossEntropy, {}, [](const Token& t) { return -t.p; }},
    {LossName::kImportanceSampling, {}, [](const Token& t) { return -std::exp(t.p - t.q) * t.a; }},
    {LossName::kPpo,
     {0.875f, 1.125f},
     [](const Token& t) {
       const double r = std::exp(t.p - t.q);
       return -std::min(r * t.a, clip(r, 0.875, 1.125) * t.a);
     }},
    {LossName::kCispo,
     {0.875f, 4.0f},
     [](const Token& t) { return -clip(std::exp(t.f - t.q), 0.875, 4.0) * t.p * t.a; }},
    {LossName::kDro,
     {0.375f},
     [](const Token& t) { return -(t.p * t.a - 0.5 * 0.375 * (t.p - t.q) * (t.p - t.q)); }},
    {LossName::kGspo,
     {0.875f, 1.125f},
     [](const Token& t) {
       const double s = t.sequence_ratio * std::exp(t.p - t.f);
       return -std::min(s * t.a, clip(s, 0.875, 1.125) * t.a);
     }},
    {LossName::kStableReinforce,
     {0.25f},
     [](const Token& t) {
       if (t.masked) return 0.0;
       return -std::min(std::exp(t.f - t.q), 2.0) * t.a * t.p +
              0.5 * 0.25 * (t.p - t.q) * (t.p - t.q);
     }},
};

// Every input a loss may read. Sampling logprobs near the model's own, so that some ratios are
// clipped and some are not.
api::Sequence rl_sequence(Engine& engine, const Reference& reference, api::AdapterSlot slot) {
  using enum api::LossInput;
  api::Sequence out = tiny_sequence(engine, 23, 5, slot);
  api::Datum& datum = edit(out);
  weights_of(datum).clear();
  api::Batch plain;
  plain.sequences = {out};
  const std::vector<float> lp = run_batch(engine, plain).sequences[0].logprobs;
  for (size_t t = 0; t < lp.size(); ++t) {
    const float mask = t < 6 ? 0.0f : 1.0f;
    datum.inputs[kLogprobs].push_back(lp[t] +
                                      0.07f * static_cast<float>(static_cast<int>(t % 7) - 3));
    datum.inputs[kAdvantages].push_back(mask * 0.5f *
                                        static_cast<float>(static_cast<int>(t % 5) - 2));
    datum.inputs[kSequenceRatioMask].push_back(mask);
    datum.inputs[kRecordedMask].push_back(mask);
  }
  out.loss.name = reference.name;
  std::copy(reference.options.begin(), reference.options.end(), out.loss.options.begin());
  return out;
}

// `frozen` are the logprobs that stopgrad sees.
double expected(const Reference& reference, const api::Datum& datum, const std::vector<double>& lp,
                const std::vector<double>& frozen) {
  const std::vector<float>& mask = datum.inputs[api::LossInput::kSequenceRatioMask];
  const std::vector<float>& sampled = datum.inputs[api::LossInput::kLogprobs];
  const std::vector<float>& advantages = datum.inputs[api::LossInput::kAdvantages];
  double mean = 0.0, count = 0.0, sum = 0.0;
  for (size_t t = 0; t < lp.size(); ++t) {
    if (mask[t] == 0.0f) continue;
    mean += frozen[t] - static_cast<double>(sampled[t]);
    count += 1.0;
  }
  for (size_t t = 0; t < lp.size(); ++t) {
    sum += reference.of_token({.p = lp[t],
                               .f = frozen[t],
                               .q = static_cast<double>(sampled[t]),
                               .a = static_cast<double>(advantages[t]),
                               .sequence_ratio = std::exp(mean / count),
                               .masked = mask[t] == 0.0f});
  }
  return sum;
}

std::vector<double> scores(Engine& engine, api::Sequence sequence) {
  sequence.loss = {};
  api::Batch batch;
  batch.sequences = {sequence};
  const auto logprobs = run_batch(engine, batch).sequences[0].logprobs;
  return {logprobs.begin(), logprobs.end()};
}

// Derivative of f() along one weight of the adapter.
template <typename Loss>
double slope_of(Engine& engine, api::AdapterSlot slot, int64_t index, Loss f) {
  constexpr float kStep = 2e-3f;  // the error of f32 logprobs is about 1e-6 a token
  model::LoraAdapter& adapter = engine.adapter(slot);
  const TensorView weight = adapter.parameters().part(index, {1});
  const auto set = [&](float value) {
    ops::from_host(engine.backend(), {&value, 1}, weight);
    adapter.refresh(engine.backend());
  };
  const float before = copy_of(weight)[0];
  const float high = before + kStep, low = before - kStep;
  set(high);
  const double above = f();
  set(low);
  const double below = f();
  set(before);
  return (above - below) / (static_cast<double>(high) - static_cast<double>(low));
}

TEST(EngineLosses, ValuesAndGradientsMatchTheTable) {
  for (const Reference& reference : kReferences) {
    auto engine = tiny_engine({.dtype = DType::kF32});
    const auto slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
    stir(*engine, slot);
    const api::Sequence sequence = rl_sequence(*engine, reference, slot);
    const std::vector<double> lp = scores(*engine, sequence);
    api::Batch batch;
    batch.gradients = api::Gradients::kAdapters;
    batch.sequences = {sequence};
    const api::BatchResult result = run_batch(*engine, batch);
    EXPECT_NEAR(result.loss_sum, expected(reference, *sequence.datum, lp, lp), 1e-4)
        << static_cast<int>(reference.name);
    const std::vector<float> gradients = copy_of(engine->adapter(slot).gradients());
    double largest = 0.0;
    for (const float value : gradients)
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
    EXPECT_GT(largest, 0.1);
    for (int64_t k = 0; k < 40; ++k) {
      const int64_t index = k * 7919 % std::ssize(gradients);
      const double want = slope_of(*engine, slot, index, [&] {
        return expected(reference, *sequence.datum, scores(*engine, sequence), lp);
      });
      EXPECT_NEAR(gradients[static_cast<size_t>(index)], want, 0.02 * largest + 2e-3)
          << static_cast<int>(reference.name) << " " << index;
    }
  }
}

// (N, K): the losses and gradients are those of the K columns one after the other.
TEST(EngineLosses, SeveralTargetsEqualTheirColumns) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    auto engine = tiny_engine({.dtype = dtype});
    const auto slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
    stir(*engine, slot);
    constexpr size_t kTokens = 300, kTargets = 3;  // more rows than a chunk of the head
    api::Sequence wide = tiny_sequence(*engine, kTokens, 5, slot);
    api::Datum& all = edit(wide);
    all.num_targets = kTargets;
    all.targets.clear();
    weights_of(all).clear();
    std::vector<api::Sequence> columns(kTargets, wide);
    std::vector<api::Datum*> parts;
    for (api::Sequence& column : columns) {
      parts.push_back(&edit(column));
      parts.back()->num_targets = 0;
      parts.back()->targets.resize(kTokens);
    }
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t k = 0; k < kTargets; ++k) {
        // The last column repeats the first now and then; weights are negative and fractional.
        const int32_t target =
            k == 2 && t % 4 == 0 ? all.targets[t * kTargets] : all.tokens[(t + k) % kTokens];
        const float weight = 0.25f * static_cast<float>(static_cast<int>((t + 2 * k) % 7) - 3);
        all.targets.push_back(target);
        weights_of(all).push_back(weight);
        parts[k]->targets[t] = target;
        weights_of(*parts[k]).push_back(weight);
      }
    }
    api::Batch batch;
    batch.gradients = api::Gradients::kAdapters;
    batch.score_all = true;
    batch.sequences = {wide};
    const api::BatchResult got = run_batch(*engine, batch);
    const std::vector<float> gradients = copy_of(engine->adapter(slot).gradients());
    engine->adapter(slot).drop_gradients();
    batch.sequences = columns;
    const api::BatchResult want = run_batch(*engine, batch);
    const std::vector<float> summed = copy_of(engine->adapter(slot).gradients());
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t k = 0; k < kTargets; ++k)
        EXPECT_EQ(got.sequences[0].logprobs[t * kTargets + k], want.sequences[k].logprobs[t]);
    }
    EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-6 * std::fabs(want.loss_sum) + 1e-4);
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < summed.size(); ++i) {
      const double d = static_cast<double>(gradients[i]) - static_cast<double>(summed[i]);
      error += d * d;
      norm += static_cast<double>(summed[i]) * static_cast<double>(summed[i]);
    }
    EXPECT_GT(norm, 0.0);
    EXPECT_LT(std::sqrt(error / norm), dtype == DType::kF32 ? 1e-5 : 2e-2);
  }
}

// Scoring every token changes no loss, and gives the masked tokens the logprobs of unmasked ones.
TEST(EngineLosses, ScoreAllFillsLogprobsOfMaskedTokens) {
  auto engine = tiny_engine({});
  api::Batch batch;
  batch.sequences = {tiny_sequence(*engine, 40, 3, api::AdapterSlot::kBase)};
  const api::BatchResult masked = run_batch(*engine, batch);
  batch.score_all = true;
  const api::BatchResult all = run_batch(*engine, batch);
  weights_of(edit(batch.sequences[0])).clear();
  const api::BatchResult open = run_batch(*engine, batch);
  EXPECT_EQ(all.sequences[0].logprobs, open.sequences[0].logprobs);
  EXPECT_EQ(all.sequences[0].losses, masked.sequences[0].losses);
  EXPECT_NE(all.sequences[0].logprobs, masked.sequences[0].logprobs);
}

}  // namespace
}  // namespace strata::engine
