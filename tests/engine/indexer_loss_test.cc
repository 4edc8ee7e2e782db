// SPDX-License-Identifier: Apache-2.0
// The loss that trains indexers: how a batch is run moves no bit of its values and gradients, nor
// it any bit of what the decoder's own loss says.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/engine/tiny_engine.h"

namespace strata::engine {
namespace {

using Values = std::vector<std::vector<float>>;

struct Trained {
  Values losses;                            // of the decoder, then of the indexers
  std::map<std::string, Values> gradients;  // of base parameters and of the adapter's modules
  double sum = 0;
  friend bool operator==(const Trained&, const Trained&) = default;
};

class IndexerRuns {
 public:
  explicit IndexerRuns(DType dtype, int threads = 1)
      : engine_(tiny_engine({.model = "deepseek_v4", .dtype = dtype, .threads = threads})) {
    slot_ = engine_->create_adapter(
        model::make_adapter_specs(engine_->config(), {"all-linear"}, 3, 6.0,
                                  model::ExpertRank::kDivided, model::WithIndexers::kYes),
        3);
    stir(*engine_, slot_);
    for (const int64_t count : {45, 1, 5, 33}) {
      const bool adapted = count != 33;
      batch_.sequences.push_back(tiny_sequence(*engine_, count, static_cast<uint32_t>(count),
                                               adapted ? slot_ : api::AdapterSlot::kBase));
    }
  }
  Engine& engine() { return *engine_; }
  api::Batch& batch() { return batch_; }

  Trained run(float weight, int64_t pass_tokens = 100,
              const model::Recompute& recompute = model::Recompute::kNone) {
    engine_->set_pass_options(pass_tokens, recompute);
    Trained out;
    batch_.indexer_weight = weight;
    batch_.gradients = api::Gradients::kAdapters;
    const api::BatchResult result = run_batch(*engine_, batch_);
    EXPECT_EQ(engine_->backend().scratch().high_water(), engine_->last_plan().bytes);
    out.sum = result.indexer_loss_sum;
    for (const auto& sequence : result.sequences) out.losses.push_back(sequence.losses);
    for (const auto& sequence : result.sequences) out.losses.push_back(sequence.indexer_losses);
    model::LoraAdapter& adapter = engine_->adapter(slot_);
    adapter.merge_gradients_apart(engine_->backend());
    for (const model::LoraModule& module : adapter.modules()) {
      const model::LoraTarget& target = engine_->model().weights->layers().targets(
          module.spec.layer)[static_cast<size_t>(module.spec.target)];
      Values& of_path = out.gradients["lora " + target.path];
      of_path.push_back(copy_of(module.d_a));
      of_path.push_back(copy_of(module.d_b));
    }
    adapter.drop_gradients();
    batch_.gradients = api::Gradients::kParameters;
    run_batch(*engine_, batch_);
    EXPECT_EQ(engine_->backend().scratch().high_water(), engine_->last_plan().bytes);
    for (auto& [name, values] : take_base_gradients(*engine_)) out.gradients[name] = {values};
    return out;
  }

 private:
  std::unique_ptr<Engine> engine_;
  api::AdapterSlot slot_;
  api::Batch batch_;
};

bool is_zero(const Values& values) {
  for (const auto& list : values) {
    for (const float value : list) {
      if (value != 0.0f) return false;
    }
  }
  return true;
}

class IndexerTraining : public testing::TestWithParam<DType> {};

TEST_P(IndexerTraining, PassesThreadsAndRecomputeMoveNoBit) {
  const Trained wanted = IndexerRuns(GetParam()).run(0.5f);
  EXPECT_GT(wanted.sum, 1.0);
  for (const int threads : {1, 2}) {
    IndexerRuns runs(GetParam(), threads);
    for (const int64_t pass_tokens : {1, 46, 100}) {
      EXPECT_EQ(runs.run(0.5f, pass_tokens), wanted) << pass_tokens;
      EXPECT_EQ(runs.run(0.5f, pass_tokens, model::Recompute::kFull), wanted) << pass_tokens;
    }
    for (const model::RecomputePreset& preset : model::recompute_presets()) {
      EXPECT_EQ(runs.run(0.5f, 100, model::Recompute::keeping(preset.tags)), wanted) << preset.name;
    }
  }
}

// Its gradient goes into the indexer's own parameters, which have no other, and nowhere else.
TEST_P(IndexerTraining, OnlyIndexersNoticeIt) {
  IndexerRuns runs(GetParam());
  const Trained with = runs.run(0.5f), without = runs.run(0.0f), twice = runs.run(1.0f);
  EXPECT_EQ(std::vector(with.losses.begin(), with.losses.begin() + 4),
            std::vector(without.losses.begin(), without.losses.begin() + 4));
  EXPECT_EQ(with.losses, twice.losses);
  EXPECT_EQ(without.losses[4], std::vector<float>());
  EXPECT_EQ(with.losses[5], std::vector<float>(1, 0.0f));  // of one token
  int indexers = 0;
  for (const auto& [name, values] : with.gradients) {
    const Values& own = without.gradients.at(name);
    if (name.find(".indexer.") == std::string::npos) {
      EXPECT_EQ(values, own) << name;
      continue;
    }
    ++indexers;
    EXPECT_TRUE(is_zero(own)) << name;
    EXPECT_FALSE(is_zero(values)) << name;
  }
  EXPECT_GE(indexers, 6 + 4);  // parameters of a layer, and adapted ones by their names
}

TEST_P(IndexerTraining, ASequenceAloneIsTheSame) {
  IndexerRuns runs(GetParam());
  runs.batch().indexer_weight = 1.0f;
  runs.batch().gradients = api::Gradients::kParameters;
  const api::BatchResult together = run_batch(runs.engine(), runs.batch());
  double sum = 0;
  for (size_t s = 0; s < together.sequences.size(); ++s) {
    api::Batch alone = {.sequences = {runs.batch().sequences[s]},
                        .gradients = api::Gradients::kParameters,
                        .indexer_weight = 0.25f};
    const api::BatchResult result = run_batch(runs.engine(), alone);
    EXPECT_EQ(result.sequences[0].indexer_losses, together.sequences[s].indexer_losses);
    sum += result.indexer_loss_sum;
  }
  EXPECT_DOUBLE_EQ(sum, together.indexer_loss_sum);
}

INSTANTIATE_TEST_SUITE_P(All, IndexerTraining, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// Steps bring the scores to what attention says.
TEST(IndexerTrainingSteps, TheLossGoesDown) {
  IndexerRuns runs(DType::kF32);
  for (api::Sequence& sequence : runs.batch().sequences) {
    sequence.slot = api::AdapterSlot::kBase;
    for (float& weight : weights_of(edit(sequence))) weight = 0.0f;
  }
  runs.batch().indexer_weight = 1.0f;
  runs.batch().gradients = api::Gradients::kParameters;
  const auto loss = [&] { return run_batch(runs.engine(), runs.batch()).indexer_loss_sum; };
  const double first = loss();
  for (int step = 0; step < 40; ++step) {
    ASSERT_TRUE(take_step(runs.engine(), api::AdapterSlot::kBase, {.lr = 0.02}).stepped);
    loss();
  }
  const double last = loss();
  EXPECT_LT(last, 0.5 * first) << first;
}

TEST(IndexerTrainingFaults, WhatIsNotThereIsSaid) {
  const auto engine = tiny_engine({.model = "qwen3"});
  const auto fault = [&](float weight) {
    try {
      run_batch(*engine, {.sequences = {tiny_sequence(*engine, 3, 1, api::AdapterSlot::kBase)},
                          .gradients = api::Gradients::kParameters,
                          .indexer_weight = weight});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(fault(1.0f), "indexer_weight: no layer of the model has an indexer");
  EXPECT_EQ(fault(-1.0f), "indexer_weight: got -1, want 0 or more");
  EXPECT_EQ(fault(0.0f), "no error");
}

}  // namespace
}  // namespace strata::engine
