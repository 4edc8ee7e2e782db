// SPDX-License-Identifier: Apache-2.0
// StageFitter: what stages keep within bytes that they share, and that it takes just that.
#include <gtest/gtest.h>

#include "backend/thread_comm.h"
#include "engine/pipeline/stage_fit.h"
#include "engine/pipeline/stage_runner.h"
#include "engine/runner.h"
#include "model/weights/init.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

constexpr int64_t kTokens = 48;
constexpr int kMicrobatches = 4;

using model::RecomputeRegions;

const RecomputeRegions kAllowed[] = {
    {.iterations = false, .layers = true},
    {.iterations = true, .layers = false, .keeps_layer_inputs = false},
    {.iterations = true, .layers = true, .keeps_layer_inputs = false}};

class Fitting {
 public:
  Fitting(const StagedCase& c, std::vector<Work> work)
      : plan_(staged_plan(c)), work_(std::move(work)) {
    for (const model::LayerRange& range : plan_.layers) {
      auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), 1);
      auto model = model::init_model(*backend, staged_config(c), c.dtype, 3, range);
      engines_.push_back(
          std::make_unique<Engine>(std::move(backend), std::move(model), EngineOptions()));
      borrowed_.push_back(engines_.back().get());
    }
    work_.resize(engines_.size());
    fitter_.emplace(plan_, borrowed_, shape_);
  }
  StageFitter* operator->() { return &*fitter_; }
  const PipelinePlan& plan() { return plan_; }
  StageFitter::Work work() { return {work_}; }

 private:
  PipelinePlan plan_;
  PlanShape shape_ = {.pass_tokens = kTokens, .backward = true, .train_base = true, .alone = true};
  std::vector<Work> work_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Engine*> borrowed_;
  std::optional<StageFitter> fitter_;
};

constexpr auto kNoFiles = [](const StagesChoice&) { return false; };
constexpr auto kFiles = [](const StagesChoice&) { return true; };

StagedCase case_of(schedule::Kind kind) {
  return {.model = "llama2",
          .num_layers = 7,
          .parameters = true,
          .num_ranks = 2,
          .num_chunks = kind == schedule::Kind::kCircular ? 2 : 1,
          .kind = kind,
          .num_microbatches = kMicrobatches};
}

// With more bytes never more work; all is kept where there is room, and least is a stage's input.
TEST(StageFitter, FitsAndNeverWorksMoreWithMore) {
  for (const auto kind :
       {schedule::Kind::kGpipe, schedule::Kind::kCircular, schedule::Kind::k1f1b}) {
    Fitting fitting(case_of(kind), {});
    const int64_t most = fitting->plan_stages({}, model::Recompute::kNone).bytes();
    EXPECT_FALSE(fitting->fit(kAllowed, fitting.work(), 1, kNoFiles));
    const int64_t least = fitting->least();
    ASSERT_LT(least, most);
    EXPECT_FALSE(fitting->fit(kAllowed, fitting.work(), least - 1, kNoFiles));
    const auto leanest = fitting->fit(kAllowed, fitting.work(), least, kNoFiles);
    ASSERT_TRUE(leanest);
    EXPECT_FALSE(leanest->regions.keeps_layer_inputs);
    double last = fitting->cost(*leanest, fitting.work());
    constexpr int kSteps = 12;
    for (int i = 1; i <= kSteps; ++i) {
      const int64_t bytes = least + (most - least) * i / kSteps;
      const auto choice = fitting->fit(kAllowed, fitting.work(), bytes, kNoFiles);
      ASSERT_TRUE(choice) << bytes;
      EXPECT_LE(choice->bytes(), bytes);
      const double cost = fitting->cost(*choice, fitting.work());
      EXPECT_LE(cost, last * (1 + 1e-9)) << i;
      last = cost;
    }
    EXPECT_EQ(last, 0.0);
  }
}

// What a busy rank does not make again, others may: it is that one which the rest waits for.
TEST(StageFitter, SparesTheBusiestRank) {
  Fitting fitting(case_of(schedule::Kind::kGpipe), {{.flops = 1e12}, {}});
  const int64_t full = fitting->plan_stages({}, model::Recompute::kFull).bytes();
  const int64_t most = fitting->plan_stages({}, model::Recompute::kNone).bytes();
  const auto choice =
      fitting->fit(kAllowed, fitting.work(), (full + most) / 2 + (most - full) / 8, kNoFiles);
  ASSERT_TRUE(choice);
  const std::vector<Work> again = fitting->recompute_work(choice->regions, choice->recompute);
  EXPECT_EQ(again[0].flops, 0.0);
  EXPECT_GT(again[1].flops, 0.0);
}

// The bits are those of a run that keeps everything, and each part is as planned.
TEST(StageFitter, TakesWhatItChose) {
  api::Datum datum = {.tokens = std::vector<int32_t>(kTokens, 1),
                      .targets = std::vector<int32_t>(kTokens, 2)};
  api::Batch batch = {.gradients = api::Gradients::kParameters};
  for (int m = 0; m < kMicrobatches; ++m) batch.sequences.push_back({.datum = &datum});
  for (const auto kind : {schedule::Kind::kGpipe, schedule::Kind::k1f1b}) {
    const StagedCase c = case_of(kind);
    Fitting fitting(c, {});
    const int64_t most = fitting->plan_stages({}, model::Recompute::kNone).bytes();
    EXPECT_FALSE(fitting->fit(kAllowed, fitting.work(), 1, kNoFiles));
    const int64_t least = fitting->least();
    std::vector<float> logprobs;
    EXPECT_FALSE(fitting->fit(kAllowed, fitting.work(), 1, kFiles));
    const int64_t with_files = fitting->least();
    EXPECT_LT(with_files, least);
    for (const int64_t bytes : {most, (least + most) / 2, least, with_files}) {
      const auto choice = bytes < least ? fitting->fit(kAllowed, fitting.work(), bytes, kFiles)
                                        : fitting->fit(kAllowed, fitting.work(), bytes, kNoFiles);
      ASSERT_TRUE(choice);
      EXPECT_EQ(choice->file_bytes() > 0, bytes < least);
      run_ranks(fitting.plan().num_ranks(), [&](Comm& comm) {
        Runner pipeline(
            comm, fitting.plan(),
            staged_engines(c, comm, fitting.plan(),
                           {.recompute = choice->recompute, .regions = choice->regions}));
        const api::BatchResult result = pipeline.run(batch);
        const std::vector<float>& got = result.sequences.back().logprobs;
        if (comm.rank() == 0 && logprobs.empty()) logprobs = got;
        if (comm.rank() == 0) {
          EXPECT_EQ(got, logprobs);
        }
        for (const auto& runner : pipeline.stages()) {
          const StagePlan& planned = choice->stages[static_cast<size_t>(runner->stage())];
          EXPECT_EQ(planned.pass_bytes, runner->pass_bytes()) << runner->stage();
          EXPECT_EQ(planned.held_bytes, runner->held_bytes()) << runner->stage();
          EXPECT_EQ(planned.border_bytes, runner->border_bytes()) << runner->stage();
          EXPECT_EQ(planned.peak_live, runner->peak_live()) << runner->stage();
        }
      });
    }
  }
}

}  // namespace
}  // namespace strata::engine
