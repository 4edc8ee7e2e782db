// SPDX-License-Identifier: Apache-2.0
// Ranks that deal a batch's micro-batches out among themselves give the bits of one: losses,
// gradients, norms and what ten optimizer steps make.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/thread_comm.h"
#include "engine/pipeline/gradient_chain.h"
#include "engine/plan/memory_plan.h"
#include "engine/runner.h"
#include "model/adapter/specs.h"
#include "model/weights/weight_shards.h"
#include "tests/stages/staged_run.h"

namespace strata::engine {
namespace {

using schedule::Kind;

// Of a whole model on each rank, whose passes are as short as two sequences.
StagedCase dealt(const std::string& model, int data) {
  StagedCase c = {.model = model, .num_layers = 3, .num_ranks = 1, .data = data};
  c.num_microbatches = 1;
  c.pass_tokens = 8;
  return c;
}

class DataBits : public testing::TestWithParam<StagedCase> {};

TEST_P(DataBits, EqualOneRank) { expect_same_bits(run_staged(GetParam()), run_whole(GetParam())); }

std::vector<StagedCase> families() {
  std::vector<StagedCase> cases;
  for (const char* model :
       {"llama2", "qwen2_window", "gemma3", "ministral", "qwen3_moe", "deepseek_moe", "deepseek_v4",
        "qwen3_5", "qwen3_5_moe", "gpt_oss", "gemma2", "lfm2", "gemma4_shared_small", "llama4"}) {
    for (const bool parameters : {false, true}) {
      const bool odd = cases.size() % 4 == 1 || cases.size() % 4 == 2;
      StagedCase c = dealt(model, odd ? 2 : 3);
      c.parameters = parameters;
      c.dtype = odd ? DType::kBF16 : DType::kF32;
      c.again = odd ? Again::kLayers : Again::kNothing;
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, DataBits, testing::ValuesIn(families()));

// The last layer's and the second uses of embedding and head, which are one matrix where tied.
std::vector<StagedCase> second_uses() {
  std::vector<StagedCase> cases;
  for (const bool parameters : {false, true}) {
    for (const bool tied : {false, true}) {
      StagedCase c = dealt("deepseek_v4_mtp", tied ? 3 : 2);
      c.parameters = parameters;
      c.mtp = true;
      c.tied = tied;
      cases.push_back(c);
    }
  }
  StagedCase tied = dealt("qwen3", 2);
  tied.parameters = tied.tied = true;
  cases.push_back(tied);
  // Both ends of a pipeline have it, and hand it over in more pieces than are on their way at once.
  tied.num_ranks = 2;
  tied.vocab_size = 80'000;
  for (const int data : {1, 2}) {
    tied.data = data;
    cases.push_back(tied);
    tied.shards = true;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(SecondUses, DataBits, testing::ValuesIn(second_uses()));

// Loads of experts are whole numbers of all ranks.
TEST(Data, MutableStateOfRouters) {
  StagedCase c = dealt("deepseek_moe", 3);
  c.parameters = true;
  c.router_bias_rate = 0.01;
  expect_same_bits(run_staged(c), run_whole(c));
}

TEST(Data, IndexerLosses) {
  for (const bool parameters : {false, true}) {
    StagedCase c = dealt("deepseek_v4_indexer", 2);
    c.parameters = parameters;
    c.indexer_weight = 0.5f;
    const Outcome whole = run_whole(c);
    EXPECT_TRUE(whole.contains("trained indexer losses"));
    expect_same_bits(run_staged(c), whole);
    c.num_layers = 4;
    c.num_ranks = 2;
    expect_same_bits(run_staged(c), run_whole(c));
  }
}

// Muon's matrices as a whole, all else by rows.
TEST(Data, MuonHasWholeMatrices) {
  StagedCase c = dealt("qwen3_moe", 3);
  c.parameters = c.muon = true;
  expect_same_bits(run_staged(c), run_whole(c));
  c = {.model = "deepseek_v4_mtp", .num_layers = 2, .parameters = true, .data = 2};
  c.num_microbatches = 2;
  c.mtp = c.tied = c.muon = true;
  expect_same_bits(run_staged(c), run_whole(c));
}

// A matrix that both ends of a pipeline read is stepped at one: the other keeps what its own uses
// add to the gradient.
TEST(Data, ATiedMatrixHasOneOwner) {
  for (const int data : {1, 2}) {
    StagedCase c = {.model = "qwen3", .num_layers = 2, .parameters = true, .data = data};
    c.num_microbatches = 1;
    c.tied = true;
    const PipelinePlan plan = staged_plan(c);
    std::atomic<int64_t> masters = 0, at_end = 0;
    int64_t all = 0, of_embedding = 0;
    run_ranks(plan.num_ranks_in_all(), [&](Comm& comm) {
      Runner runner(comm, plan, staged_engines(c, comm, plan));
      runner.enable_base_steps({});
      const train::BaseTrainer& trainer = runner.engine().base_trainer();
      const model::ModelWeights& weights = *runner.engine().model().weights;
      const size_t embedding = weights.embedding_index();
      masters += trainer.masters().shape.num_elements();
      if (weights.ends()) {
        EXPECT_TRUE(trainer.master(embedding).empty());
        EXPECT_TRUE(trainer.gradient(embedding).empty());
        for (const train::Accumulator& sum : trainer.second_uses())
          at_end += sum.own.empty() ? 0 : sum.own.shape.num_elements();
      } else {
        EXPECT_TRUE(trainer.second_uses().empty());
      }
      if (comm.rank() != 0) return;
      for (const model::Parameter& parameter : weights.table())
        all += parameter.buffer ? 0 : parameter.shape.num_elements();
      of_embedding = weights.table()[embedding].shape.num_elements();
    });
    EXPECT_EQ(masters, all) << data;
    EXPECT_EQ(at_end, of_embedding) << data;
  }
}

// Of so many ranks each has its part of masters, moments and gradients, and as many in all as one.
TEST(Data, EachRankOwnsItsPart) {
  StagedCase c = dealt("qwen3", 4);
  c.parameters = true;
  const PipelinePlan plan = staged_plan(c);
  std::vector<int64_t> owned(4), bytes(4);
  int64_t all = 0, largest = 0, of_one = 0;
  run_ranks(4, [&](Comm& comm) {
    Runner runner(comm, plan, staged_engines(c, comm, plan));
    runner.enable_base_steps({});
    const train::BaseTrainer& trainer = runner.engine().base_trainer();
    const auto rank = static_cast<size_t>(comm.rank());
    owned[rank] = trainer.masters().shape.num_elements();
    EXPECT_EQ(trainer.first_moments().shape.num_elements(), owned[rank]);
    EXPECT_EQ(trainer.second_moments().shape.num_elements(), owned[rank]);
    bytes[rank] = trainer.num_bytes();
    if (rank != 0) return;
    const model::ModelWeights& weights = *runner.engine().model().weights;
    all = weights.num_parameters();
    std::map<int, int64_t> of_layers;  // outside them each parameter is alone
    for (const model::Parameter& parameter : weights.table()) {
      int64_t& part = of_layers[parameter.layer];
      if (parameter.layer < 0) part = 0;
      part += parameter.shape.num_elements();
      largest = std::max(largest, part);
    }
    of_one = train::BaseTrainer(runner.engine().backend(), weights).num_bytes();
  });
  EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), int64_t{0}), all);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(static_cast<double>(owned[rank]), static_cast<double>(all) / 4, 200.0) << rank;
    // And what passes accumulate in, a layer or the embedding, whose owners have its second use
    // too.
    EXPECT_LT(bytes[rank], of_one / 4 + 8 * largest + 3200) << rank;
  }
}

// Of so many ranks each has its part of the weights between batches, and in them what two layers
// take at most; all that it was planned to have.
TEST(Data, EachRankHasItsPartOfTheWeights) {
  StagedCase c = dealt("qwen3", 3);
  c.shards = true;
  c.num_layers = 12;
  const PipelinePlan plan = staged_plan(c);
  run_ranks(3, [&](Comm& comm) {
    Runner runner(comm, plan, staged_engines(c, comm, plan));
    const model::ModelWeights& weights = *runner.engine().model().weights;
    const model::ShardUnits& units = weights.shards()->units();
    const MemoryShare share = plan.weight_share(comm.rank()).all;
    int64_t own = 0, all = 0;
    for (const int64_t bytes : units.bytes) {
      own += part_of(bytes, share).size();
      all += bytes;
    }
    EXPECT_EQ(all, weights.num_bytes());
    EXPECT_NEAR(static_cast<double>(own), static_cast<double>(all) / 3,
                64.0 * static_cast<double>(units.bytes.size()));
    const auto largest = *std::max_element(units.bytes.begin(), units.bytes.end());
    EXPECT_GT(weights.memory_bytes(), own);
    EXPECT_LE(weights.memory_bytes(), own + 2 * largest);
  });
}

// All in one round; and of more ranks than sequences, some have none.
TEST(Data, OneRound) {
  StagedCase c = dealt("qwen3", 2);
  c.pass_tokens = 1000;
  const Outcome whole = run_whole(c);
  expect_same_bits(run_staged(c), whole);
  c.data = 11;
  expect_same_bits(run_staged(c), whole);
}

// The head's gradient goes from rank to rank in parts, each behind all other work of the head, but
// for that of rows beyond those that are kept.
TEST(Data, HeadInParts) {
  StagedCase c = dealt("qwen3", 3);
  c.num_layers = 1;
  c.parameters = true;
  c.vocab_size = 1100;
  c.times_as_long = 120;
  c.pass_tokens = 1500;
  expect_same_bits(run_staged(c), run_whole(c));
  c.data = 2;
  c.dtype = DType::kBF16;
  c.tied = true;
  c.times_as_long = 150;
  c.pass_tokens = 3000;
  expect_same_bits(run_staged(c), run_whole(c));
}

// Bytes of gradients that are on their way from each rank, where the last one takes its time.
class SlowComm : public Comm {
 public:
  struct Counts {
    std::atomic<int64_t> now = 0, most = 0;
  };
  SlowComm(Comm& all, std::array<Counts, 3>& counts) : all_(all), counts_(counts) {}
  [[nodiscard]] int rank() const override { return all_.rank(); }
  [[nodiscard]] int size() const override { return all_.size(); }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    if (is_gradient(tag)) {
      Counts& own = counts_[static_cast<size_t>(rank())];
      const int64_t now = own.now += bytes;
      own.most = std::max<int64_t>(own.most, now);
    }
    all_.send_bytes(to, tag, data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    if (rank() == size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    all_.receive_bytes(from, tag, data, bytes);
    if (is_gradient(tag)) counts_[static_cast<size_t>(from)].now -= bytes;
  }

 private:
  static bool is_gradient(int64_t tag) {
    return tag % (1 << 17) >= kFirstChainTag && tag > 1 << 17;
  }
  Comm& all_;
  std::array<Counts, 3>& counts_;
};

// In one round no more parts are on their way than are planned to be, however late a rank is.
TEST(Data, FewGradientsAreOnTheirWay) {
  for (const bool parameters : {false, true}) {
    StagedCase c = dealt("qwen3", 3);
    c.parameters = parameters;
    c.num_layers = 24;
    c.pass_tokens = 1000;
    const PipelinePlan plan = staged_plan(c);
    std::array<SlowComm::Counts, 3> counts;
    std::atomic<int64_t> planned = 0, all = 0;
    run_ranks(3, [&](Comm& comm) {
      SlowComm slow(comm, counts);
      Runner runner(slow, plan, staged_engines(c, slow, plan));
      Engine& engine = runner.engine();
      const auto slot = runner.create_adapter(
          model::make_adapter_specs(engine.config(), {"all-linear"}, 4, 8.0), 3);
      const std::vector<int32_t> tokens(30, 1);
      api::Datum datum;
      datum.tokens = datum.targets = tokens;
      datum.inputs[api::LossInput::kWeights].assign(tokens.size(), 1.0f);
      api::Batch batch;
      batch.gradients = parameters ? api::Gradients::kParameters : api::Gradients::kAdapters;
      for (int i = 0; i < 3; ++i) batch.sequences.push_back({.datum = &datum, .slot = slot});
      runner.run(batch, nullptr);
      if (comm.rank() > 0) return;
      PlanShape shape = {.backward = true, .train_base = parameters, .several_rounds = false};
      planned = in_flight_gradient_bytes(engine, shape, plan.data);
      shape.several_rounds = true;
      all = in_flight_gradient_bytes(engine, shape, plan.data);
    });
    for (const SlowComm::Counts& rank : counts) {
      EXPECT_EQ(rank.now, 0);
      EXPECT_GT(rank.most, 0);
      EXPECT_LE(rank.most, planned);
    }
    EXPECT_LT(planned, all);
  }
}

// Each data rank is a pipeline.
std::vector<StagedCase> pipelines() {
  std::vector<StagedCase> cases;
  for (const char* model : {"qwen3", "deepseek_v4_mtp", "qwen3_5"}) {
    for (const Kind kind : {Kind::k1f1b, Kind::kGpipe, Kind::kCircular}) {
      const bool odd = cases.size() % 2 == 1;
      StagedCase c = {.model = model,
                      .num_layers = 4,
                      .parameters = !odd,
                      .num_ranks = 2,
                      .data = odd ? 3 : 2,
                      .num_chunks = kind == Kind::kCircular ? 2 : 1,
                      .kind = kind,
                      .num_microbatches = 2};
      c.mtp = std::string(model) == "deepseek_v4_mtp";
      c.tied = std::string(model) == "qwen3";
      c.again = odd ? Again::kStage : Again::kLayers;
      cases.push_back(c);
    }
  }
  // Of adapters nothing comes behind a backward.
  cases.push_back({.num_layers = 4, .num_ranks = 3, .data = 2, .kind = Kind::kZb1p});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Pipelines, DataBits, testing::ValuesIn(pipelines()));

// Processes of several ranks, alone and as data ranks with weights that they divide.
std::vector<StagedCase> processes() {
  const std::vector<StagedCase> cases = {
      {.model = "qwen3_5", .num_layers = 5, .num_ranks = 4, .ranks_each = 2, .kind = Kind::k1f1b},
      {.model = "deepseek_v4_mtp",
       .num_layers = 4,
       .parameters = true,
       .num_ranks = 2,
       .ranks_each = 2,
       .data = 2,
       .mtp = true,
       .tied = true},
      {.num_layers = 7,
       .parameters = true,
       .num_ranks = 6,
       .ranks_each = 3,
       .data = 2,
       .shards = true,
       .kind = Kind::k1f1b},
      {.model = "gemma3",
       .num_layers = 4,
       .dtype = DType::kBF16,
       .num_ranks = 2,
       .ranks_each = 2,
       .data = 3,
       .shards = true,
       .num_chunks = 2,
       .kind = Kind::kCircular}};
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Processes, DataBits, testing::ValuesIn(processes()));

// Weights are divided, and come layer by layer: of every family, and of pipelines.
std::vector<StagedCase> shards() {
  std::vector<StagedCase> cases;
  for (const char* model :
       {"llama2", "qwen2_window", "gemma3", "ministral", "qwen3_moe", "deepseek_moe", "deepseek_v4",
        "qwen3_5", "qwen3_5_moe", "gpt_oss", "gemma2", "lfm2"}) {
    const bool odd = cases.size() % 2 == 1;
    StagedCase c = dealt(model, odd ? 2 : 3);
    c.dtype = odd ? DType::kBF16 : DType::kF32;
    c.again = odd ? Again::kLayers : Again::kNothing;
    c.parameters = cases.size() % 4 == 2;
    cases.push_back(c);
  }
  for (const bool tied : {false, true}) {
    StagedCase c = dealt("deepseek_v4_mtp", 2);
    c.mtp = true;
    c.tied = c.parameters = tied;
    cases.push_back(c);
  }
  StagedCase routed = dealt("deepseek_moe", 3);  // whose biases every rank moves
  routed.parameters = true;
  routed.router_bias_rate = 0.01;
  cases.push_back(routed);
  StagedCase muon = dealt("qwen3_moe", 2);
  muon.parameters = muon.muon = true;
  cases.push_back(muon);
  for (const Kind kind : {Kind::k1f1b, Kind::kGpipe, Kind::kCircular, Kind::kZb1p}) {
    StagedCase c = {.num_layers = 4,
                    .num_ranks = 2,
                    .data = kind == Kind::kGpipe ? 3 : 2,
                    .num_chunks = kind == Kind::kCircular ? 2 : 1,
                    .kind = kind,
                    .num_microbatches = 2,
                    .again = kind == Kind::kGpipe ? Again::kStage : Again::kBoth};
    c.tied = kind != Kind::kCircular;
    c.parameters = kind == Kind::k1f1b;
    cases.push_back(c);
  }
  for (StagedCase& c : cases) c.shards = true;
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shards, DataBits, testing::ValuesIn(shards()));

}  // namespace
}  // namespace strata::engine
