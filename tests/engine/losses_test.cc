// Losses through the whole engine, f32: values and gradients of the adapter against formulas in
// double over the logprobs that a plain scoring pass returns, and central differences of the
// engine's own loss by adapter weights.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using api::LossName;

constexpr LossName kLosses[] = {LossName::kCrossEntropy,
                                LossName::kImportanceSampling,
                                LossName::kPpo,
                                LossName::kCispo,
                                LossName::kDro,
                                LossName::kGspo,
                                LossName::kStableReinforce};

api::Loss loss(LossName name) {
  api::Loss out{.name = name, .clip_low = 0.9f, .clip_high = 1.1f, .beta = 0.4f, .kl_coeff = 0.3f};
  if (name == LossName::kCispo) out.clip_high = 4.0f;
  return out;
}

// Every input a loss may read. Sampling logprobs near the model's own, so that some ratios are
// clipped and some are not.
api::Sequence rl_sequence(Engine& engine, LossName name, api::AdapterSlot slot) {
  api::Sequence out = tiny_sequence(engine, 23, 5, slot);
  out.weights.clear();
  out.loss = loss(name);
  api::Batch plain;
  plain.sequences = {out};
  plain.sequences[0].loss = {};
  const std::vector<float> lp = engine.run(plain).sequences[0].logprobs;
  for (size_t t = 0; t < lp.size(); ++t) {
    out.logprobs.push_back(lp[t] + 0.07f * static_cast<float>(static_cast<int>(t % 7) - 3));
    out.advantages.push_back(t < 6 ? 0.0f : 0.5f * static_cast<float>(static_cast<int>(t % 5) - 2));
    out.mask.push_back(t < 6 ? 0.0f : 1.0f);
  }
  return out;
}

// The table of the protocol. `frozen` are the logprobs that stopgrad sees.
double reference(const api::Sequence& s, const std::vector<double>& lp,
                 const std::vector<double>& frozen) {
  const double lo = static_cast<double>(s.loss.clip_low);
  const double hi = static_cast<double>(s.loss.clip_high);
  double mean = 0.0, count = 0.0, sum = 0.0;
  for (size_t t = 0; t < s.tokens.size(); ++t) {
    if (s.mask[t] == 0.0f) continue;
    mean += frozen[t] - static_cast<double>(s.logprobs[t]);
    count += 1.0;
  }
  const double sequence_ratio = std::exp(mean / count);
  for (size_t t = 0; t < s.tokens.size(); ++t) {
    const double q = static_cast<double>(s.logprobs[t]), a = static_cast<double>(s.advantages[t]);
    const double r = std::exp(lp[t] - q), fixed = std::exp(frozen[t] - q), gap = lp[t] - q;
    switch (s.loss.name) {
      case LossName::kCrossEntropy:
        sum -= lp[t];
        break;
      case LossName::kImportanceSampling:
        sum -= r * a;
        break;
      case LossName::kPpo:
        sum -= std::min(r * a, std::clamp(r, lo, hi) * a);
        break;
      case LossName::kCispo:
        sum -= std::clamp(fixed, lo, hi) * lp[t] * a;
        break;
      case LossName::kDro:
        sum -= lp[t] * a - 0.5 * static_cast<double>(s.loss.beta) * gap * gap;
        break;
      case LossName::kGspo: {
        const double st = sequence_ratio * std::exp(lp[t] - frozen[t]);
        sum -= std::min(st * a, std::clamp(st, lo, hi) * a);
        break;
      }
      case LossName::kStableReinforce:
        if (s.mask[t] != 0.0f)
          sum += -std::min(fixed, 2.0) * a * lp[t] +
                 0.5 * static_cast<double>(s.loss.kl_coeff) * gap * gap;
        break;
    }
  }
  return sum;
}

std::vector<double> scores(Engine& engine, api::Sequence sequence) {
  sequence.loss = {};
  api::Batch batch;
  batch.sequences = {sequence};
  const auto logprobs = engine.run(batch).sequences[0].logprobs;
  return {logprobs.begin(), logprobs.end()};
}

// Derivative of f() along one weight of the adapter.
template <typename Loss>
double slope_of(Engine& engine, api::AdapterSlot slot, int64_t index, Loss f) {
  constexpr float kStep = 2e-3f;  // the error of f32 logprobs is about 1e-6 a token
  model::LoraAdapter& adapter = engine.adapter(slot);
  float& weight = adapter.parameters().f32()[index];
  const float before = weight;
  weight = before + kStep;
  const float high = weight;
  adapter.refresh(engine.backend());
  const double above = f();
  weight = before - kStep;
  const float low = weight;
  adapter.refresh(engine.backend());
  const double below = f();
  weight = before;
  adapter.refresh(engine.backend());
  return (above - below) / (static_cast<double>(high) - static_cast<double>(low));
}

TEST(EngineLosses, ValuesAndGradientsMatchTheTable) {
  for (const LossName name : kLosses) {
    auto engine = tiny_engine({.dtype = DType::kF32});
    const auto slot = engine->create_adapter(tiny_specs(*engine, 3), 7);
    stir(*engine, slot);
    const api::Sequence sequence = rl_sequence(*engine, name, slot);
    const std::vector<double> lp = scores(*engine, sequence);
    api::Batch batch;
    batch.gradients = api::Gradients::kAdapters;
    batch.sequences = {sequence};
    const api::BatchResult result = engine->run(batch);
    EXPECT_NEAR(result.loss_sum, reference(sequence, lp, lp), 1e-4) << static_cast<int>(name);
    const TensorView gradients = engine->adapter(slot).gradients();
    double largest = 0.0;
    for (int64_t i = 0; i < gradients.shape.num_elements(); ++i)
      largest = std::max(largest, std::fabs(static_cast<double>(gradients.f32()[i])));
    EXPECT_GT(largest, 0.1);
    for (int64_t k = 0; k < 40; ++k) {
      const int64_t index = k * 7919 % gradients.shape.num_elements();
      const double want = slope_of(
          *engine, slot, index, [&] { return reference(sequence, scores(*engine, sequence), lp); });
      EXPECT_NEAR(gradients.f32()[index], want, 0.02 * largest + 2e-3)
          << static_cast<int>(name) << " " << index;
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
    wide.num_targets = kTargets;
    wide.targets.clear();
    wide.weights.clear();
    std::vector<api::Sequence> columns(kTargets, tiny_sequence(*engine, kTokens, 5, slot));
    for (auto& column : columns) column.weights.clear();
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t k = 0; k < kTargets; ++k) {
        // The last column repeats the first now and then; weights are negative and fractional.
        const int32_t target = k == 2 && t % 4 == 0 ? wide.targets[t * kTargets]
                                                    : columns[0].tokens[(t + k) % kTokens];
        const float weight = 0.25f * static_cast<float>(static_cast<int>((t + 2 * k) % 7) - 3);
        wide.targets.push_back(target);
        wide.weights.push_back(weight);
        columns[k].targets[t] = target;
        columns[k].weights.push_back(weight);
      }
    }
    api::Batch batch;
    batch.gradients = api::Gradients::kAdapters;
    batch.score_all = true;
    batch.sequences = {wide};
    const api::BatchResult got = engine->run(batch);
    const std::vector<float> gradients = copy_of(engine->adapter(slot).gradients());
    engine->adapter(slot).drop_gradients();
    batch.sequences = columns;
    const api::BatchResult want = engine->run(batch);
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
  const api::BatchResult masked = engine->run(batch);
  batch.score_all = true;
  const api::BatchResult all = engine->run(batch);
  batch.sequences[0].weights.clear();
  const api::BatchResult open = engine->run(batch);
  EXPECT_EQ(all.sequences[0].logprobs, open.sequences[0].logprobs);
  EXPECT_EQ(all.sequences[0].losses, masked.sequences[0].losses);
  EXPECT_NE(all.sequences[0].logprobs, masked.sequences[0].logprobs);
}

}  // namespace
}  // namespace strata::engine
