// SPDX-License-Identifier: Apache-2.0
// What stages hold between a forward and its backward, for {iterations} x {layers} x {schedule} of
// a model of Llama 2's shape: a table written out from the shapes in config.json, which the bytes
// that were taken meet to the byte and by tag.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "backend/thread_comm.h"
#include "engine/pipeline/stage_plan.h"
#include "engine/pipeline/stage_runner.h"
#include "engine/runner.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using schedule::Kind;
using Tags = std::map<std::string, int64_t>;

// Llama 2 in small: width, 4 heads of 12, MLP, f32, and the tokens of a micro-batch.
constexpr int64_t kWidth = 48, kHeads = 4, kMlp = 44, kTokens = 9;
constexpr int kMicrobatches = 4;

// Of values in f32, as the scratch hands them out.
int64_t held(int64_t values) { return Arena::aligned(values * 4); }

// Of a layer, beside its input.
const Tags& activations() {
  static const Tags tags = {{"query_proj", held(kTokens * kWidth)},
                            {"key_proj", held(kTokens * kWidth)},
                            {"value_proj", held(kTokens * kWidth)},
                            {"context", held(kTokens * kWidth) + held(kTokens * kHeads)},
                            {"out_proj", held(kTokens * kWidth)},
                            {"mlpwi_0", held(kTokens * kMlp)},
                            {"mlpwi_1", held(kTokens * kMlp)}};
  return tags;
}

// A line of the table: what --recompute, --recompute-iterations and --recompute-layers hold of a
// stage of so many layers.
struct Line {
  std::string policy;
  bool iterations = false, layers = false;
  std::vector<std::string> kept = {};  // activations, of every layer
  bool keeps_all = false;
  bool keeps_layer_inputs = true;
};

const Line kLines[] = {
    {.policy = "full", .keeps_all = true},
    {.policy = "full", .layers = true},
    {.policy = "full", .iterations = true},
    {.policy = "full", .iterations = true, .layers = true},
    {.policy = "qkv", .keeps_all = true},
    {.policy = "qkv", .layers = true, .kept = {"query_proj", "key_proj", "value_proj"}},
    {.policy = "qkv", .iterations = true, .kept = {"query_proj", "key_proj", "value_proj"}},
    {.policy = "qkv",
     .iterations = true,
     .layers = true,
     .kept = {"query_proj", "key_proj", "value_proj"}},
    {.policy = "input", .iterations = true, .keeps_layer_inputs = false},
    {.policy = "input", .iterations = true, .layers = true, .keeps_layer_inputs = false},
    {.policy = "input and context",
     .iterations = true,
     .kept = {"context"},
     .keeps_layer_inputs = false}};

Tags expected(const Line& line, int64_t num_layers, bool ends) {
  Tags tags;
  const int64_t inputs = line.keeps_layer_inputs ? num_layers : 1;
  tags["decoder_layer_input"] = (inputs + (ends ? 1 : 0)) * held(kTokens * kWidth);
  for (const auto& [tag, bytes] : activations()) {
    const bool kept =
        line.keeps_all || std::find(line.kept.begin(), line.kept.end(), tag) != line.kept.end();
    if (kept) tags[tag] = num_layers * bytes;
  }
  // The last state's norm and its gradient.
  if (ends) tags["final_hidden"] = 2 * held(kTokens * kWidth);
  return tags;
}

// Micro-batches in flight on a stage, at most.
int64_t expected_live(Kind kind, int stage, int num_ranks) {
  return kind == Kind::k1f1b ? std::min(kMicrobatches, num_ranks - stage) : kMicrobatches;
}

TEST(StageRecompute, HoldsTheBytesOfTheTable) {
  api::Datum datum = {.tokens = std::vector<int32_t>(kTokens, 1),
                      .targets = std::vector<int32_t>(kTokens, 2)};
  api::Batch batch = {.gradients = api::Gradients::kParameters};
  for (int m = 0; m < kMicrobatches; ++m) batch.sequences.push_back({.datum = &datum});
  for (const Kind kind : {Kind::kGpipe, Kind::kCircular, Kind::k1f1b}) {
    const StagedCase c = {.model = "llama2",
                          .num_layers = 7,
                          .parameters = true,
                          .num_ranks = 2,
                          .num_chunks = kind == Kind::kCircular ? 2 : 1,
                          .kind = kind,
                          .num_microbatches = kMicrobatches};
    const PipelinePlan plan = staged_plan(c);
    std::vector<float> logprobs;  // of the first line
    for (const Line& line : kLines) {
      const model::Recompute recompute =
          line.keeps_all ? model::Recompute::kNone : model::Recompute::keeping(line.kept);
      const model::RecomputeRegions regions = {.iterations = line.iterations,
                                               .layers = line.layers,
                                               .keeps_layer_inputs = line.keeps_layer_inputs};
      run_ranks(plan.num_ranks(), [&](Comm& comm) {
        Runner pipeline(
            comm, plan,
            staged_engines(c, comm, plan, {.recompute = recompute, .regions = regions}));
        const PlanShape shape = {
            .pass_tokens = kTokens, .backward = true, .train_base = true, .alone = true};
        std::map<int, StagePlan> plans;
        for (const auto& runner : pipeline.stages()) {
          plans[runner->stage()] = plan_stage(plan, runner->stage(), runner->engine(), shape);
        }
        const api::BatchResult result = pipeline.run(batch);
        if (comm.rank() == 0) {
          const std::vector<float>& got = result.sequences.back().logprobs;
          if (logprobs.empty()) logprobs = got;
          EXPECT_EQ(got, logprobs);
        }
        for (const auto& runner : pipeline.stages()) {
          const auto stage = static_cast<size_t>(runner->stage());
          SCOPED_TRACE(line.policy + (line.iterations ? " iterations" : "") +
                       (line.layers ? " layers" : "") + " stage " + std::to_string(stage));
          Tags got;
          for (const Scratch::Use& use : runner->held_uses()) {
            if (use.bytes > 0) got[std::string(use.tag)] = use.bytes;
          }
          const Tags want =
              expected(line, plan.layers[stage].size(), stage + 1 == plan.layers.size());
          EXPECT_EQ(got, want);
          int64_t bytes = 0;
          for (const auto& [tag, of_tag] : want) bytes += of_tag;
          EXPECT_EQ(runner->held_bytes(), bytes);
          EXPECT_EQ(plans[runner->stage()].held_bytes, bytes);
          const int64_t live = expected_live(kind, runner->stage(), plan.num_ranks());
          EXPECT_EQ(runner->peak_live(), live);
          EXPECT_EQ(plans[runner->stage()].peak_live, live);
          EXPECT_EQ(plans[runner->stage()].pass_bytes, runner->pass_bytes());
          EXPECT_EQ(plans[runner->stage()].border_bytes, runner->border_bytes());
        }
      });
    }
  }
}

// Made again as one, a stage works with all of its layers at once; as regions in one another, with
// one layer and the inputs of the others.
TEST(StageRecompute, ALayerOfItsOwnTakesLessToWorkWith) {
  const StagedCase c = {.model = "llama2", .num_layers = 8, .parameters = true};
  const PipelinePlan plan = staged_plan(c);
  run_ranks(plan.num_ranks(), [&](Comm& comm) {
    const auto working = [&](const model::RecomputeRegions& regions) {
      Runner pipeline(comm, plan,
                      staged_engines(c, comm, plan,
                                     {.recompute = model::Recompute::kFull, .regions = regions}));
      return plan_stage(plan, comm.rank(), pipeline.engine(),
                        {.pass_tokens = 64, .backward = true, .train_base = true});
    };
    const StagePlan layers = working({});
    const StagePlan stage = working({.iterations = true, .layers = false});
    const StagePlan input =
        working({.iterations = true, .layers = false, .keeps_layer_inputs = false});
    const StagePlan both =
        working({.iterations = true, .layers = true, .keeps_layer_inputs = false});
    EXPECT_GT(stage.pass_bytes, layers.pass_bytes);
    EXPECT_EQ(stage.held_bytes, layers.held_bytes);
    EXPECT_LT(input.held_bytes, stage.held_bytes);
    EXPECT_GT(input.pass_bytes, stage.pass_bytes);
    EXPECT_LT(both.pass_bytes, input.pass_bytes);
    EXPECT_EQ(both.held_bytes, input.held_bytes);
    EXPECT_GT(both.pass_bytes, layers.pass_bytes);
  });
}

}  // namespace
}  // namespace strata::engine
