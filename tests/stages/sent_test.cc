// SPDX-License-Identifier: Apache-2.0
// What each rank is planned to send for a batch and its optimizer step, to the byte of what it
// sends.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/thread_comm.h"
#include "engine/pipeline/sent_plan.h"
#include "engine/runner.h"
#include "model/adapter/specs.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using schedule::Kind;

std::vector<api::Datum> make_data() {
  std::vector<api::Datum> data;
  for (const size_t length : {5, 3, 7, 1, 4, 6, 2}) {
    data.push_back(
        {.tokens = std::vector<int32_t>(length, 3), .targets = std::vector<int32_t>(length, 5)});
  }
  return data;
}

class SentPlan : public testing::TestWithParam<StagedCase> {};

TEST_P(SentPlan, IsWhatRanksSend) {
  const StagedCase& c = GetParam();
  const PipelinePlan plan = staged_plan(c);
  const std::vector<api::Datum> data = make_data();
  std::vector<SentBytes> planned, sent(static_cast<size_t>(plan.num_ranks_in_all()));
  run_ranks(plan.num_ranks_in_all(), [&](Comm& comm) {
    Runner runner(comm, plan, staged_engines(c, comm, plan));
    std::vector<api::AdapterSlot> slots = {api::AdapterSlot::kBase};
    if (c.parameters) {
      runner.enable_base_steps({.muon = c.muon, .router_bias_rate = c.router_bias_rate});
    } else {
      slots = {runner.create_adapter(
          model::make_adapter_specs(runner.engine().config(),
                                    {"all-linear", "embed_tokens", "lm_head"}, 3, 16.0),
          11)};
    }
    api::Batch batch = {
        .gradients = c.parameters ? api::Gradients::kParameters : api::Gradients::kAdapters,
        .mtp_weight = c.mtp ? 0.3f : 0.0f,
        .indexer_weight = c.indexer_weight};
    for (const api::Datum& datum : data)
      batch.sequences.push_back({.datum = &datum, .slot = slots.front()});
    for (int step = 0; step < 2; ++step) {
      const std::vector<SentBytes> own = runner.plan_sends(batch, slots);
      SentBytes counted;
      counted -= runner.sent();
      runner.run(batch);
      runner.step(slots.front(), {.lr = 1e-3});
      counted += runner.sent();
      EXPECT_EQ(own[static_cast<size_t>(comm.rank())], counted) << comm.rank() << ", " << step;
      sent[static_cast<size_t>(comm.rank())] = counted;
      if (comm.rank() == 0) planned = own;
    }
  });
  ASSERT_EQ(planned.size(), sent.size());
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    for (size_t kind = 0; kind < kSentNames.size(); ++kind)
      EXPECT_EQ(planned[rank].by_kind[kind], sent[rank].by_kind[kind])
          << rank << " " << kSentNames[kind];
    EXPECT_GT(sent[rank].total(), 0) << rank;
  }
}

std::vector<StagedCase> divisions() {
  std::vector<StagedCase> cases;
  for (const bool parameters : {false, true}) {
    const auto add = [&](StagedCase c) {
      c.parameters = parameters;
      c.dtype = cases.size() % 2 == 0 ? DType::kF32 : DType::kBF16;
      cases.push_back(c);
    };
    for (const int ranks : {2, 3}) {
      add({.num_ranks = ranks, .kind = Kind::k1f1b, .num_microbatches = 3});
      add({.num_layers = 2,
           .num_ranks = 1,
           .data = ranks,
           .num_microbatches = 1,
           .pass_tokens = 8});
      add({.num_ranks = ranks, .data = 2, .num_microbatches = 2, .tied = true});
    }
    add({.num_layers = 2, .num_ranks = 1, .data = 3, .num_microbatches = 1});
    add({.num_layers = 4,
         .num_ranks = 2,
         .data = 2,
         .num_chunks = 2,
         .kind = Kind::kCircular,
         .num_microbatches = 2});
    add({.model = "deepseek_v4_mtp",
         .num_layers = 3,
         .num_ranks = 2,
         .data = 2,
         .num_microbatches = 2,
         .mtp = true,
         .tied = parameters});
    add({.model = "deepseek_moe",
         .num_layers = 3,
         .num_ranks = 1,
         .data = 3,
         .num_microbatches = 1,
         .pass_tokens = 8,
         .router_bias_rate = parameters ? 0.01 : 0.0});
    if (parameters) {
      add({.num_layers = 3,
           .num_ranks = 2,
           .data = 3,
           .num_microbatches = 2,
           .tied = true,
           .muon = true});
    }
    add({.model = "qwen3_5", .num_ranks = 3, .kind = Kind::kGpipe, .num_microbatches = 2});
  }
  // Where ranks divide the weights too.
  const std::vector<StagedCase> whole = cases;
  for (StagedCase c : whole) {
    if (c.data == 1) continue;
    c.shards = true;
    c.again = c.num_ranks == 1 ? Again::kLayers : Again::kStage;
    cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Divisions, SentPlan, testing::ValuesIn(divisions()));

// Losses of indexers go from the first stage, and with gradients.
std::vector<StagedCase> with_indexers() {
  std::vector<StagedCase> cases;
  for (const bool parameters : {false, true}) {
    for (const int ranks : {1, 2}) {
      cases.push_back({.model = "deepseek_v4_indexer",
                       .num_layers = 4,
                       .parameters = parameters,
                       .num_ranks = ranks,
                       .data = 2,
                       .num_microbatches = 2,
                       .indexer_weight = 0.5f});
    }
  }
  return cases;
}

// Of tensor ranks every rank knows what each sends, and of tokens whose rows of the embedding it
// is.
std::vector<StagedCase> with_tensors() {
  std::vector<StagedCase> cases;
  for (const char* const model : {"llama2", "qwen3_moe", "deepseek_moe", "gemma4_moe", "olmo2"}) {
    cases.push_back({.model = model,
                     .num_layers = 2,
                     .parameters = cases.size() % 2 == 1,
                     .dtype = cases.size() % 2 == 0 ? DType::kF32 : DType::kBF16,
                     .num_ranks = 1,
                     .data = cases.size() % 2 == 0 ? 1 : 2,
                     .tensor = 2,
                     .num_microbatches = 1,
                     .again = cases.size() % 3 == 0 ? Again::kNothing : Again::kLayers,
                     .pass_tokens = 8});
  }
  for (const bool parameters : {false, true}) {
    cases.push_back({.num_layers = 2,
                     .parameters = parameters,
                     .num_ranks = 1,
                     .tensor = 3,
                     .num_microbatches = 2});
  }
  for (const bool parameters : {false, true}) {
    cases.push_back({.model = "qwen3_moe",
                     .num_layers = 4,
                     .parameters = parameters,
                     .num_ranks = 2,
                     .data = parameters ? 2 : 1,
                     .tensor = 2,
                     .kind = Kind::k1f1b,
                     .num_microbatches = 2,
                     .again = parameters ? Again::kLayers : Again::kStage,
                     .tied = parameters});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Tensors, SentPlan, testing::ValuesIn(with_tensors()));

INSTANTIATE_TEST_SUITE_P(Indexers, SentPlan, testing::ValuesIn(with_indexers()));

}  // namespace
}  // namespace strata::engine
