// SPDX-License-Identifier: Apache-2.0
// Expert ranks divide the experts of every layer and change no bit: hidden states, logits, logprobs
// and losses of the base and of adapters, on every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string_view>
#include <vector>

#include "backend/thread_comm.h"
#include "engine/pipeline/sent_plan.h"
#include "engine/runner.h"
#include "model/adapter/specs.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

struct ExpertCase {
  const char* model;
  std::vector<int> ranks;
  int most = 4;  // the most ranks, but these, that there are experts for
};
void PrintTo(const ExpertCase& c, std::ostream* out) { *out << c.model; }

class ExpertRanksTest : public ::testing::TestWithParam<ExpertCase> {};

TEST_P(ExpertRanksTest, GiveTheBitsOfOneProcess) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 3,
                    .dtype = dtype,
                    .num_ranks = 1,
                    .num_microbatches = 1};
    const Outcome want = score_whole(c);
    for (const int ranks : GetParam().ranks) {
      c.expert = ranks;
      SCOPED_TRACE(::testing::PrintToString(c));
      for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
    }
  }
}

// Routers of every kind; experts that all tokens read, and such with a gate; biases; layers without
// experts among those with them; weights that inputs are times of; paths with norms of their own.
INSTANTIATE_TEST_SUITE_P(
    Families, ExpertRanksTest,
    ::testing::Values(ExpertCase{"qwen3_moe", {2, 3, 6}}, ExpertCase{"qwen3_moe_fused", {7}},
                      ExpertCase{"mixtral", {2, 3}}, ExpertCase{"granitemoe", {3}},
                      ExpertCase{"glm4_moe", {7}}, ExpertCase{"glm4_moe_lite", {2}},
                      ExpertCase{"gpt_oss", {3, 4}}, ExpertCase{"gemma4_moe", {2, 3}},
                      ExpertCase{"llama4", {5}}, ExpertCase{"llama4_experts", {3}, 3},
                      ExpertCase{"deepseek_moe", {2, 3}}, ExpertCase{"deepseek_v2", {2, 3}},
                      ExpertCase{"deepseek_yarn", {4}}, ExpertCase{"deepseek_v4", {5, 2}},
                      ExpertCase{"qwen3_5_moe", {3}}, ExpertCase{"qwen3_next", {2}}),
    [](const auto& info) { return std::string(info.param.model); });

// Losses, gradients and ten steps: of adapters, of which each rank runs sequences of its own, and
// of all parameters.
TEST_P(ExpertRanksTest, TrainToTheBitsOfOneProcess) {
  for (const auto& [parameters, dtype] :
       {std::pair(false, DType::kF32), std::pair(false, DType::kBF16),
        std::pair(true, DType::kF32)}) {
    StagedCase c = {.model = GetParam().model,
                    .num_layers = 3,
                    .parameters = parameters,
                    .dtype = dtype,
                    .num_ranks = 1,
                    .num_microbatches = 1,
                    .pass_tokens = 16};
    const Outcome want = run_whole(c);
    c.expert = GetParam().ranks.back();
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_same_bits(run_staged(c), want);
  }
}

// With all activations recomputed; Muon; biases of routers that follow loads, of which each rank
// counts all rows; multi-token prediction.
TEST(ExpertRanksTest, TrainInEveryWayToTheBitsOfOneProcess) {
  const StagedCase qwen = {
      .model = "qwen3_moe", .num_layers = 3, .num_ranks = 1, .expert = 3, .num_microbatches = 1};
  StagedCase recomputed = qwen, kept_in_part = qwen, muon = qwen;
  recomputed.again = Again::kLayers;
  kept_in_part.again = Again::kBoth;
  muon.parameters = muon.muon = true;
  const StagedCase deepseek = {.model = "deepseek_v4_mtp",
                               .num_layers = 3,
                               .parameters = true,
                               .dtype = DType::kBF16,
                               .num_ranks = 1,
                               .expert = 5,
                               .num_microbatches = 1,
                               .mtp = true,
                               .router_bias_rate = 0.01};
  for (StagedCase c : {recomputed, kept_in_part, muon, deepseek}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Outcome got = run_staged(c);
    c.expert = 1;
    c.again = Again::kNothing;
    expect_same_bits(got, run_whole(c));
  }
}

// Passes of one sequence, of which ranks may have experts that read none; where these are dealt out
// in rounds, the last one has fewer than there are ranks.
TEST(ExpertRanksTest, SplitPassesAndExpertsWithoutRows) {
  StagedCase c = {.model = "qwen3_moe",
                  .num_layers = 3,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .pass_tokens = 1};
  const Outcome want = score_whole(c), trained = run_whole(c);
  for (const int ranks : {4, 6}) {
    c.expert = ranks;
    SCOPED_TRACE(::testing::PrintToString(c));
    for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
    expect_same_bits(run_staged(c), trained);
  }
}

// In stages, whose micro-batches are in flight, and some of which ranks have none of; weight
// gradients that come behind backwards. Each family in one of three ways.
TEST_P(ExpertRanksTest, StagesTrainToTheBitsOfOneProcess) {
  struct Way {
    schedule::Kind kind;
    int microbatches;
    bool parameters;
    DType dtype;
  };
  const Way ways[] = {{schedule::Kind::k1f1b, 2, false, DType::kBF16},
                      {schedule::Kind::kGpipe, 4, true, DType::kF32},
                      {schedule::Kind::kZb1p, 3, false, DType::kF32}};
  const Way& way = ways[std::string_view(GetParam().model).size() % std::size(ways)];
  StagedCase c = {.model = GetParam().model,
                  .num_layers = 4,
                  .parameters = way.parameters,
                  .dtype = way.dtype,
                  .num_ranks = 2,
                  .kind = way.kind,
                  .num_microbatches = way.microbatches};
  const Outcome want = run_whole(c);
  c.expert = GetParam().ranks.front();
  SCOPED_TRACE(::testing::PrintToString(c));
  expect_same_bits(run_staged(c), want);
}

// Several copies of the experts: micro-batches are dealt copy behind copy, and an expert's sums go
// on from copy to copy. Each family in one of three ways; in the last round a copy has nothing.
TEST_P(ExpertRanksTest, CopiesTrainToTheBitsOfOneProcess) {
  struct Way {
    int copies;
    int64_t pass_tokens;
    bool parameters;
    DType dtype;
  };
  const Way ways[] = {
      {2, 8, true, DType::kF32}, {2, 16, false, DType::kBF16}, {3, 8, false, DType::kF32}};
  const Way& way = ways[std::string_view(GetParam().model).size() % std::size(ways)];
  StagedCase c = {.model = GetParam().model,
                  .num_layers = 3,
                  .parameters = way.parameters,
                  .dtype = way.dtype,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .pass_tokens = way.pass_tokens};
  const Outcome want = run_whole(c);
  c.expert = GetParam().ranks.front();
  c.data = way.copies;
  SCOPED_TRACE(::testing::PrintToString(c));
  expect_same_bits(run_staged(c), want);
}

// The same with all activations recomputed, Muon, routers' biases that follow loads, multi-token
// prediction; fewer sequences than ranks, so that a copy has none; and in stages.
TEST(ExpertRanksTest, CopiesInEveryWayTrainToTheBitsOfOneProcess) {
  const StagedCase qwen = {.model = "qwen3_moe",
                           .num_layers = 3,
                           .num_ranks = 1,
                           .data = 2,
                           .expert = 3,
                           .num_microbatches = 1};
  std::vector<StagedCase> cases;
  const auto add = [&](StagedCase c, auto change) {
    change(c);
    cases.push_back(std::move(c));
  };
  add(qwen, [](StagedCase& c) { c.again = Again::kLayers; });
  add(qwen, [](StagedCase& c) { c.parameters = c.muon = true; });
  add(qwen, [](StagedCase& c) { c.num_sequences = 3; });
  add(qwen, [](StagedCase& c) {
    c.num_sequences = 4;
    c.parameters = true;
    c.pass_tokens = 1;
  });
  const StagedCase deepseek = {.model = "deepseek_v4_mtp",
                               .num_layers = 3,
                               .parameters = true,
                               .dtype = DType::kBF16,
                               .num_ranks = 1,
                               .data = 2,
                               .expert = 2,
                               .num_microbatches = 1,
                               .mtp = true,
                               .router_bias_rate = 0.01};
  add(deepseek, [](StagedCase&) {});
  add(deepseek, [](StagedCase& c) { c.parameters = false; });
  const StagedCase staged = {.model = "qwen3_moe",
                             .num_layers = 4,
                             .num_ranks = 2,
                             .data = 2,
                             .expert = 2,
                             .kind = schedule::Kind::k1f1b,
                             .num_microbatches = 2};
  add(staged, [](StagedCase& c) { c.parameters = c.tied = true; });
  add(staged, [](StagedCase& c) {
    c.kind = schedule::Kind::kZb1p;
    c.dtype = DType::kBF16;
    c.num_sequences = 7;
  });
  for (StagedCase c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Outcome got = run_staged(c);
    c.expert = c.data = 1;
    c.again = Again::kNothing;
    expect_same_bits(got, run_whole(c));
  }
}

// Beside tensor ranks, which divide each matrix of an expert too: in several copies, in stages, of
// which a process has two.
TEST(ExpertRanksTest, BesideTensorRanksTrainToTheBitsOfOneProcess) {
  const StagedCase plain = {.model = "qwen3_moe",
                            .num_layers = 3,
                            .num_ranks = 1,
                            .tensor = 2,
                            .expert = 2,
                            .num_microbatches = 1,
                            .pass_tokens = 8};
  StagedCase parameters = plain, bf16 = plain, gemma = plain, copies = plain, staged = plain;
  parameters.model = "deepseek_moe";
  parameters.parameters = true;
  bf16.model = "gpt_oss";
  bf16.dtype = DType::kBF16;
  gemma.model = "gemma4_moe";
  gemma.again = Again::kLayers;
  copies.model = "deepseek_v4_mtp";
  copies.parameters = copies.mtp = true;
  copies.data = 2;
  staged.num_layers = 4;
  staged.num_ranks = staged.num_microbatches = staged.ranks_each = 2;
  staged.parameters = true;
  for (StagedCase c : {plain, parameters, bf16, gemma, copies, staged}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Outcome got = run_staged(c);
    c.expert = c.data = c.tensor = 1;
    c.again = Again::kNothing;
    expect_same_bits(got, run_whole(c));
  }
}

// Processes that have several stages each.
TEST(ExpertRanksTest, SeveralStagesOfAProcessTrainToTheBitsOfOne) {
  for (const bool parameters : {false, true}) {
    StagedCase c = {.model = "qwen3_moe",
                    .num_layers = 4,
                    .parameters = parameters,
                    .num_ranks = parameters ? 2 : 4,
                    .ranks_each = 2,
                    .data = parameters ? 2 : 1,
                    .expert = 2,
                    .kind = schedule::Kind::k1f1b,
                    .num_microbatches = 2};
    SCOPED_TRACE(::testing::PrintToString(c));
    const Outcome got = run_staged(c);
    c.expert = c.data = 1;
    expect_same_bits(got, run_whole(c));
  }
}

// Which divide what they have alike: the experts of copies, and of one copy all else. Passes
// without a sequence have the layers come too.
TEST(ExpertRanksTest, DividedWeightsTrainToTheBitsOfOneProcess) {
  const StagedCase plain = {.model = "qwen3_moe",
                            .num_layers = 3,
                            .num_ranks = 1,
                            .expert = 3,
                            .shards = true,
                            .num_microbatches = 1,
                            .pass_tokens = 8};
  StagedCase parameters = plain, copies = plain, few = plain, staged = plain, predicted = plain;
  parameters.parameters = true;
  copies.model = "deepseek_moe";
  copies.data = copies.expert = 2;
  copies.parameters = true;
  copies.dtype = DType::kBF16;
  copies.router_bias_rate = 0.01;
  few.num_sequences = 4;
  few.data = 2;
  few.again = Again::kLayers;
  staged.num_layers = 4;
  staged.num_ranks = staged.num_microbatches = staged.data = staged.expert = 2;
  staged.parameters = staged.tied = true;
  predicted.model = "deepseek_v4_mtp";
  predicted.mtp = true;
  predicted.data = 2;
  for (StagedCase c : {plain, parameters, copies, few, staged, predicted}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Outcome got = run_staged(c);
    c.expert = c.data = 1;
    c.again = Again::kNothing;
    expect_same_bits(got, run_whole(c));
  }
}

// Without a backward: each rank has all results, whoever made them.
TEST(ExpertRanksTest, CopiesGiveTheBitsOfOneProcess) {
  StagedCase c = {.model = "deepseek_moe",
                  .num_layers = 3,
                  .dtype = DType::kBF16,
                  .num_ranks = 1,
                  .num_microbatches = 1};
  const Outcome want = score_whole(c);
  c.expert = 3;
  c.data = 2;
  for (const Outcome& got : score_staged(c)) expect_same_bits(got, want);
}

// Ranks without a sequence of their own run their experts for the others.
TEST_P(ExpertRanksTest, FewerSequencesThanRanks) {
  StagedCase c = {.model = GetParam().model,
                  .num_layers = 3,
                  .dtype = DType::kBF16,
                  .num_ranks = 1,
                  .num_microbatches = 1,
                  .num_sequences = 3};
  const Outcome want = run_whole(c);
  c.expert = std::max(GetParam().most, GetParam().ranks.back());
  SCOPED_TRACE(::testing::PrintToString(c));
  expect_same_bits(run_staged(c), want);
}

// A rank's losses are of its own sequences, and it sends them to the others: of all sequences
// together each loss once to each, which it would not if all ranks ran all.
TEST(ExpertRanksTest, EachSequenceIsRunByOneRank) {
  StagedCase c = {.model = "qwen3_moe", .num_ranks = 1, .expert = 3, .num_microbatches = 1};
  const PipelinePlan plan = staged_plan(c);
  std::vector<int64_t> tokens(3), results(3);
  run_ranks(3, [&](Comm& comm) {
    Runner runner(comm, plan, staged_engines(c, comm, plan));
    const std::deque<api::Datum> data = staged_data(runner.engine().config().vocab_size, c);
    const api::AdapterSlot slot = runner.create_adapter(
        model::make_adapter_specs(runner.engine().config(), {"all-linear"}, 4, 8.0), 1);
    api::Batch batch = {.gradients = api::Gradients::kAdapters};
    for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum, .slot = slot});
    std::vector<SentBytes> planned = runner.plan_sends(batch, {});
    runner.run(batch);
    const auto rank = static_cast<size_t>(comm.rank());
    SentBytes sent = runner.sent();
    results[rank] = sent[Sent::kResults];
    for (const api::Datum& datum : data) tokens[rank] += std::ssize(datum.tokens);
    for (const Sent exact : {Sent::kResults, Sent::kGradients, Sent::kControl})
      EXPECT_EQ(sent[exact], planned[rank][exact]) << rank;
    for (const Sent bounded : {Sent::kActivations, Sent::kActivationGradients}) {
      EXPECT_GT(sent[bounded], 0) << rank;
      EXPECT_LE(sent[bounded], planned[rank][bounded]) << rank;
    }
  });
  constexpr int64_t kLists = 2, kOthers = 2;
  const int64_t each = tokens[0] * kLists * kOthers * static_cast<int64_t>(sizeof(float));
  EXPECT_EQ(results[0] + results[1] + results[2], each);
  for (const int64_t bytes : results) {
    EXPECT_GT(bytes, each / 6);
    EXPECT_LT(bytes, each / 2);
  }
}

// Of adapters and of all parameters, behind which a step comes: as much of each kind as was
// planned, or of rows of experts no more. Ranks of copies of them exchange what both own.
TEST(ExpertRanksTest, CopiesSendWhatWasPlanned) {
  for (const bool parameters : {false, true}) {
    for (const int stages : {1, 2}) {
      const StagedCase c = {.model = "deepseek_moe",
                            .num_layers = 4,
                            .parameters = parameters,
                            .dtype = DType::kBF16,
                            .num_ranks = stages,
                            .data = 2,
                            .expert = 2,
                            .num_microbatches = stages,
                            .pass_tokens = 8,
                            .router_bias_rate = parameters ? 0.01 : 0.0};
      SCOPED_TRACE(::testing::PrintToString(c));
      const PipelinePlan plan = staged_plan(c);
      run_ranks(plan.num_ranks_in_all(), [&](Comm& comm) {
        Runner runner(comm, plan, staged_engines(c, comm, plan));
        std::vector<api::AdapterSlot> slots = {api::AdapterSlot::kBase};
        if (parameters) {
          runner.enable_base_steps({.router_bias_rate = c.router_bias_rate});
        } else {
          slots = {runner.create_adapter(
              model::make_adapter_specs(runner.engine().config(), {"all-linear"}, 4, 8.0), 1)};
        }
        const std::deque<api::Datum> data = staged_data(runner.engine().config().vocab_size, c);
        api::Batch batch = {.gradients = parameters ? api::Gradients::kParameters
                                                    : api::Gradients::kAdapters};
        for (const api::Datum& datum : data)
          batch.sequences.push_back({.datum = &datum, .slot = slots.front()});
        for (int step = 0; step < 2; ++step) {
          const std::vector<SentBytes> planned = runner.plan_sends(batch, slots);
          SentBytes sent;
          sent -= runner.sent();
          runner.run(batch);
          runner.step(slots.front(), {.lr = 1e-3});
          sent += runner.sent();
          SentBytes of_rank = planned[static_cast<size_t>(comm.rank())];
          for (const Sent exact :
               {Sent::kResults, Sent::kGradients, Sent::kControl, Sent::kParameters})
            EXPECT_EQ(sent[exact], of_rank[exact]) << comm.rank() << " " << static_cast<int>(exact);
          for (const Sent bounded : {Sent::kActivations, Sent::kActivationGradients}) {
            EXPECT_GT(sent[bounded], 0) << comm.rank();
            EXPECT_LE(sent[bounded], of_rank[bounded]) << comm.rank();
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace strata::engine
